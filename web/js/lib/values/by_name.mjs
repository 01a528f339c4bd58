// @ts-check
/** Our nodes save their values by name, and get them back by name: an input may be added, moved or removed. */

import { ORDERS } from "./orders.mjs";
import { inOrder, namedValues, valuesByName } from "./restore.mjs";

/** @typedef {import("./restore.mjs").SavedNode} SavedNode */

/** What a setting means that a saved node lacks, where a new node begins with something else. @type {Record<string, object>} */
const LACKING = { WanDatasetSettings: { held_out_ratio: 0 } };

/**
 * Every way to load or copy a node (file, undo, paste, subgraph) goes through these two methods of its class.
 * @param {{ prototype: any }} nodeType the class the page made of a node
 * @param {string} kind its id
 */
export function keepByName({ prototype }, kind) {
  const orders = (ORDERS[kind] ?? []).map((order) => order.split(","));
  if (!orders.length) return;
  const { configure, onSerialize } = prototype;
  prototype.configure = function (/** @type {SavedNode} */ saved) {
    const widgets = this.widgets ?? [];
    const told = namedValues(saved, widgets, orders);
    if (told) {
      const named = { ...LACKING[kind], ...told };
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
