// @ts-check
/** Which value of a saved node belongs to which widget. Pure. */

import { OURS } from "../page/ids.mjs";

/**
 * A node as a workflow file holds it. Since frontends of 2026 `widgets_values_named` stands next to the positions; this
 * pack writes it on every frontend.
 * @typedef {{ type?: string, inputs?: { name?: string, widget?: { name: string } }[], widgets_values?: unknown,
 *   widgets_values_named?: Record<string, unknown> }} SavedNode
 * @typedef {{ name: string, value?: unknown, serialize?: boolean }} Widget
 */

/** @param {Widget[]} widgets @returns {Widget[]} those whose value is saved */
export function savedWidgets(widgets) {
  return widgets.filter((widget) => widget.serialize !== false);
}

/**
 * The values by name, under the key that newer frontends use.
 * @param {Widget[]} widgets
 * @returns {Record<string, unknown>}
 */
export function valuesByName(widgets) {
  return Object.fromEntries(savedWidgets(widgets).map(({ name, value }) => [name, value ?? null]));
}

/**
 * The saved values by name; null without names, where the page uses positions. Names win, unless a program changed the
 * positions: then there are as many as widgets today.
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
 * The values of the node's widgets in order: saved by name, else the current one. null, of a menu without choices,
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
 * Whether names and positions have the same values, so that neither was changed. Display-only widgets may have left
 * empty values at the end.
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
    // Frontends as old as 1.32 leave a gap for a widget that is not saved, which shifts the values behind it.
    saved.widgets_values &&= savedWidgets(this.widgets ?? []).map(({ value }) => value ?? null);
    saved.widgets_values_named ??= valuesByName(this.widgets ?? []);
    return result;
  };
}
