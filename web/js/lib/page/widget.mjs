// @ts-check
/** What this pack shows inside a node of the canvas: a DOM widget that LiteGraph and Vue nodes both draw. */

/**
 * @typedef {import("./graph.mjs").GraphNode} GraphNode
 */

/** Prefix of the names of our widgets. */
export const WIDGET = "wan_trainer_status";
/** Widgets made so far. */
let made = 0;
/** What the canvas leaves free above and below a widget, in pixels. */
export const MARGINS = 20;
/** A size that takes back the gap the canvas adds to every row. */
const NO_ROW = () => [0, -4];

/**
 * A widget that only shows. Added last and never saved, so that it shifts no value of a workflow.
 * @param {GraphNode} node
 * @param {HTMLElement} shown
 * @param {{ least: () => number, most?: () => number, name?: string }} height in pixels, margins included
 */
export function addWidget(node, shown, { least, most, name = WIDGET }) {
  made += 1;
  // Vue nodes keep the element of a widget whose node and name stay: in another workflow the ids are the same.
  const widget = node.addDOMWidget(`${name}_${made}`, WIDGET, shown, {
    serialize: false,
    hideOnZoom: false,
    hideInPanel: true,
    getMinHeight: least,
    ...(most ? { getMaxHeight: most } : {}),
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
  keepWidth(widget);
  return widget;
}

/**
 * Keeps a widget as wide as its node: the page's side panel draws unknown widgets too and leaves its own width in them.
 * Newer frontends have a switch against it.
 * @param {object} widget
 */
function keepWidth(widget) {
  Object.defineProperty(widget, "width", { get: () => undefined, set: () => {} });
}

/**
 * What a node made is shown in its widget: the page draws no picture or clip of its own below it, neither a finished one
 * nor a live one.
 * @param {GraphNode} node
 */
export function hideOutputs(node) {
  node.hideOutputImages = true;
  node.onDrawBackground = () => {};
}

/**
 * Room for a widget whose height changes: LiteGraph makes a node higher by itself, and never lower again. What a user made
 * of the height is kept.
 * @param {any} node
 * @returns {() => void} called when the widget's least height has changed
 */
export function room(node) {
  /** The height that a user gave, and the least one when it was last looked at. */
  let [given, least] = [0, 0];
  return () => {
    const [wide, high] = node.size;
    if (high > least + MARGINS) given = high;
    least = node.computeSize()[1];
    const isVue = document.querySelector(`[data-node-id="${node.id}"]`);
    if (!isVue && least < high) node.setSize([wide, Math.min(high, Math.max(given, least))]);
    makeRoom(node);
  };
}

/** The canvas makes room for a widget when it draws, and shows the room when it draws again. @param {GraphNode} node */
export function makeRoom(node) {
  const draw = () => node.setDirtyCanvas?.(true, true);
  draw();
  requestAnimationFrame(() => requestAnimationFrame(draw));
}

/**
 * The wheel zooms the canvas above a widget too; Vue nodes hand it on themselves.
 * @param {any} canvas the page's, if it has one
 * @param {WheelEvent} event
 */
export function zoomThrough(canvas, event) {
  const place = /** @type {Element} */ (event.currentTarget);
  if (!canvas || place.closest("[data-node-id]")) return;
  event.preventDefault();
  canvas.processMouseWheel(event);
}

/**
 * Calls `changed` when a user changes a widget of a node.
 * @param {GraphNode} node
 * @param {(name: string) => boolean} wanted which widgets
 * @param {() => void} changed
 */
export function watchWidgets(node, wanted, changed) {
  for (const widget of node.widgets ?? []) {
    if (!wanted(widget.name)) continue;
    const before = widget.callback;
    widget.callback = function (/** @type {unknown[]} */ ...values) {
      const result = before?.apply(this, values);
      changed();
      return result;
    };
  }
}

/**
 * Hides widgets. Frontends as old as 1.32 reserve a row for hidden widgets and draw Vue nodes from the widget's
 * options, read when the list of widgets changes. Newer ones use `hidden`.
 * @param {GraphNode} node
 * @param {any[]} widgets
 * @param {Set<string>} wanted
 */
export function showOnly(node, widgets, wanted) {
  const turned = widgets.filter(({ name, hidden }) => Boolean(hidden) === wanted.has(name));
  for (const widget of turned) {
    const hidden = !wanted.has(widget.name);
    widget.hidden = hidden;
    if (!Object.hasOwn(widget, "hidden")) continue;
    // Newer pages keep the first object, older ones notice a new one.
    widget.options = { ...Object.assign(widget.options ?? {}, { hidden }) };
    if (hidden) widget.computeSize = NO_ROW;
    else delete widget.computeSize;
  }
  if (!turned.some((widget) => Object.hasOwn(widget, "hidden"))) return;
  const all = [...(node.widgets ?? [])];
  node.widgets = []; // the same list again would be no change
  node.widgets = all;
}

/**
 * Calls `change`, and makes the node as high as it needs.
 * @param {GraphNode} node
 * @param {boolean} exact whether it grows and shrinks by the rows that come and go; else it grows where there is no room
 * @param {() => void} change
 */
export function fitted(node, exact, change) {
  const before = node.computeSize?.()[1] ?? 0;
  change();
  const after = node.computeSize?.()[1] ?? 0;
  const [width, height] = node.size ?? [0, 0];
  const high = exact ? height + after - before : Math.max(height, after);
  if (high !== height) node.setSize?.([width, high]);
  node.setDirtyCanvas?.(true, true);
}
