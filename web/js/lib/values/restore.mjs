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
  const named = isRecord(saved.widgets_values_named) ? saved.widgets_values_named : {};
  const count = Object.keys(named).length;
  if (!positions.length && count) return named;
  if (!positions.length) return isRecord(saved.widgets_values) ? saved.widgets_values : null;
  if (spells(named, positions)) return named;
  const known = count ? orders.find((order) => tells(order, named, positions)) : undefined;
  if (known) return byPosition(known, positions);
  if (count && positions.length === orders[0]?.length) {
    return isOfOtherOrder(named, positions, orders[0]) ? named : byPosition(orders[0], positions);
  }
  if (count >= positions.length) return named;
  const order = orderOf(saved, positions, widgets, orders);
  if (order) return { ...byPosition(order, positions), ...named };
  return count ? named : null;
}

/**
 * What the node's widgets are to show, in their order: the saved values by name; where none was saved, what is there. None
 * is also the null of a menu that had nothing to choose.
 * @param {Record<string, unknown>} named
 * @param {Widget[]} widgets
 * @returns {unknown[]}
 */
export function inOrder(named, widgets) {
  return savedWidgets(widgets).map(
    ({ name, value }) => (Object.hasOwn(named, name) ? named[name] : null) ?? value,
  );
}

/** @param {string[]} order @param {unknown[]} positions */
function byPosition(order, positions) {
  return Object.fromEntries(order.map((name, at) => [name, positions[at]]));
}

/**
 * Whether the names stand in the order of the positions and tell them all: nothing but the page wrote the file, whichever
 * version of the node that was. What only shows may have left empty values behind them.
 * @param {Record<string, unknown>} named
 * @param {unknown[]} positions
 */
function spells(named, positions) {
  const values = Object.values(named);
  const rest = positions.slice(values.length);
  return values.length > 0 && allSame(values, positions) && rest.every(isEmpty);
}

/**
 * Whether positions of that order say what the names say, of those that are named.
 * @param {string[]} order
 * @param {Record<string, unknown>} named
 * @param {unknown[]} positions
 */
function tells(order, named, positions) {
  if (order.length !== positions.length || !areIn(order, named)) return false;
  const values = byPosition(order, positions);
  const names = Object.keys(named);
  return allSame(
    names.map((name) => named[name]),
    names.map((name) => values[name]),
  );
}

/**
 * Whether the file is of a version with inputs that are gone, and as many positions as today's by chance.
 * @param {Record<string, unknown>} named
 * @param {unknown[]} positions
 * @param {string[]} today
 */
function isOfOtherOrder(named, positions, today) {
  const sorted = (/** @type {unknown[]} */ values) =>
    values.map((one) => JSON.stringify(one)).sort();
  return !areIn(today, named) && allSame(sorted(Object.values(named)), sorted(positions));
}

/** @param {string[]} order @param {Record<string, unknown>} named whose names may all be in it */
function areIn(order, named) {
  return Object.keys(named).every((name) => order.includes(name));
}

/** @param {unknown[]} values @param {unknown[]} others of which there may be more */
function allSame(values, others) {
  return values.every((value, at) => JSON.stringify(value) === JSON.stringify(others[at]));
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
  while (found[0] > 1 && isEmpty(positions[found[0] - 1])) found.unshift(found[0] - 1);
  return found;
}

/** @param {unknown} value */
function isEmpty(value) {
  return (value ?? "") === "";
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
