// @ts-check
/** Which value of a saved node belongs to which widget. Pure. */

/**
 * A node as a workflow file holds it. Since frontends of 2026 `widgets_values_named` stands beside the positions; this
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
 * The saved values by name, or null when the file does not tell which is which.
 * @param {SavedNode} saved
 * @param {Widget[]} widgets the node as this version makes it, with its defaults
 * @param {string[][]} orders names in every order the node has had, the newest first
 * @returns {Record<string, unknown> | null}
 */
export function namedValues(saved, widgets, orders) {
  const positions = Array.isArray(saved.widgets_values) ? saved.widgets_values : [];
  const named = saved.widgets_values_named;
  if (isRecord(named) && (agree(named, positions) || positions.length !== orders[0]?.length)) {
    return named;
  }
  if (!positions.length) return isRecord(saved.widgets_values) ? saved.widgets_values : null;
  const order = isRecord(named) ? orders[0] : orderOf(saved, positions, widgets, orders);
  return order ? Object.fromEntries(order.map((name, index) => [name, positions[index]])) : null;
}

/**
 * What the node's widgets are to show, in their order: the saved values by name; where none was saved, what is there.
 * @param {Record<string, unknown>} named
 * @param {Widget[]} widgets
 * @returns {unknown[]}
 */
export function inOrder(named, widgets) {
  return savedWidgets(widgets).map(({ name, value }) =>
    Object.hasOwn(named, name) ? named[name] : value,
  );
}

/**
 * Whether nothing but the page wrote the file. A program that knows positions only leaves old values under the names.
 * @param {Record<string, unknown>} named
 * @param {unknown[]} positions
 */
function agree(named, positions) {
  const left = positions.map((value) => JSON.stringify(value));
  return Object.values(named).every((value) => {
    const at = left.indexOf(JSON.stringify(value));
    if (at >= 0) left.splice(at, 1);
    return at >= 0;
  });
}

/**
 * The order a file without names was written in: what its own inputs say, else the newest known one that has as many
 * values of the right types.
 * @param {SavedNode} saved
 * @param {unknown[]} positions
 * @param {Widget[]} widgets
 * @param {string[][]} orders
 * @returns {string[] | undefined}
 */
function orderOf(saved, positions, widgets, orders) {
  const own = (saved.inputs ?? []).flatMap(({ widget }) => (widget ? [widget.name] : []));
  const types = new Map(widgets.map(({ name, value }) => [name, typeof value]));
  const fits = (/** @type {string[]} */ order) =>
    order.every((name, at) => (types.get(name) ?? typeof positions[at]) === typeof positions[at]);
  for (const known of own.length ? [[own], orders] : [orders]) {
    for (const count of counts(positions)) {
      const found = known.find((order) => order.length === count && fits(order));
      if (found) return found;
    }
  }
}

/**
 * How many values an order may have: all, or fewer when the last are those of widgets that only show ("" or null). The
 * fewest first: such a value must not land in an input that was added later, and those are saved by name.
 * @param {unknown[]} positions
 */
function counts(positions) {
  const found = [positions.length];
  while (found[0] > 1 && (positions[found[0] - 1] ?? "") === "") found.unshift(found[0] - 1);
  return found;
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
