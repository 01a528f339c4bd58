// @ts-check
/** Assigns the values of a saved node to its widgets, by name. Pure. */

import { OURS } from "../page/ids.mjs";

/**
 * A node in a workflow file. Frontends since 2026 write `widgets_values_named` in addition to the list of values; this pack
 * writes it on every frontend.
 * @typedef {{ type?: string, inputs?: { name?: string, widget?: { name: string } }[], widgets_values?: unknown,
 *   widgets_values_named?: Record<string, unknown> }} SavedNode
 * @typedef {{ name: string, value?: unknown, serialize?: boolean }} Widget
 */

/** @param {Widget[]} widgets @returns {Widget[]} the widgets with saved values */
export function savedWidgets(widgets) {
  return widgets.filter((widget) => widget.serialize !== false);
}

/**
 * The values by name, for `widgets_values_named`.
 * @param {Widget[]} widgets
 * @returns {Record<string, unknown>}
 */
export function valuesByName(widgets) {
  return Object.fromEntries(savedWidgets(widgets).map(({ name, value }) => [name, value ?? null]));
}

/**
 * The saved values by name; null without names, so that the page uses the list. Names win, unless another program changed
 * the list: then the list has as many values as the node has widgets.
 * @param {SavedNode} saved
 * @param {string[]} today names of the node's widgets, in order
 * @returns {Record<string, unknown> | null}
 */
export function namedValues(saved, today) {
  const positions = Array.isArray(saved.widgets_values) ? saved.widgets_values : [];
  const named = isRecord(saved.widgets_values_named) ? saved.widgets_values_named : {};
  const names = Object.keys(named);
  if (!names.length) return isRecord(saved.widgets_values) ? saved.widgets_values : null;
  const changed = positions.length === today.length && !spells(named, positions);
  if (!changed || !names.every((name) => today.includes(name))) return named;
  return Object.fromEntries(today.map((name, at) => [name, positions[at]]));
}

/**
 * The values of the node's widgets, in order: the saved value, else the current one. null, from a menu without choices,
 * counts as not saved.
 * @param {Record<string, unknown>} named
 * @param {Widget[]} widgets
 * @returns {unknown[]}
 */
export function inOrder(named, widgets) {
  return savedWidgets(widgets).map(
    ({ name, value }) => (Object.hasOwn(named, name) ? named[name] : null) ?? value,
  );
}

/**
 * Whether names and list have the same values, so that neither was changed. Display-only widgets may have added empty
 * values at the end.
 * @param {Record<string, unknown>} named
 * @param {unknown[]} positions
 */
function spells(named, positions) {
  const values = Object.values(named);
  const rest = positions.slice(values.length);
  const same = values.every((value, at) => JSON.stringify(value) === JSON.stringify(positions[at]));
  return same && rest.every((value) => (value ?? "") === "");
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @typedef {import("./restore.mjs").SavedNode} SavedNode */

/**
 * Wraps the two methods of a node class that load and save it (file, undo, paste, subgraph).
 * @param {{ prototype: any }} nodeType LiteGraph's class
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
    // Frontends as old as 1.32 leave a gap for a widget that is not saved, which shifts the later values.
    saved.widgets_values &&= savedWidgets(this.widgets ?? []).map(({ value }) => value ?? null);
    saved.widgets_values_named ??= valuesByName(this.widgets ?? []);
    return result;
  };
}
