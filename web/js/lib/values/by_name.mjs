// @ts-check
/** Our nodes save their values by name, and get them back by name: an input may be added at the end. */

import { OURS } from "../page/ids.mjs";
import { inOrder, namedValues, savedWidgets, valuesByName } from "./restore.mjs";

/** @typedef {import("./restore.mjs").SavedNode} SavedNode */

/**
 * Every way to load or copy a node (file, undo, paste, subgraph) goes through these two methods of its class.
 * @param {{ prototype: any }} nodeType the class the page made of a node
 * @param {string} kind its id
 */
export function keepByName({ prototype }, kind) {
  if (!OURS.includes(kind)) return;
  const { configure, onSerialize } = prototype;
  prototype.configure = function (/** @type {SavedNode} */ saved) {
    const widgets = savedWidgets(this.widgets ?? []);
    const named = namedValues(
      saved,
      widgets.map(({ name }) => name),
    );
    if (named) {
      saved.widgets_values = inOrder(named, widgets);
      saved.widgets_values_named = named;
    }
    return configure.call(this, saved);
  };
  prototype.onSerialize = function (/** @type {SavedNode} */ saved) {
    const result = onSerialize?.call(this, saved);
    saved.widgets_values_named ??= valuesByName(this.widgets ?? []);
    return result;
  };
}
