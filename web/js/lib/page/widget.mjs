// @ts-check
/** A DOM widget inside a node; LiteGraph and Vue nodes both draw it. */

/**
 * @typedef {import("./graph.mjs").GraphNode} GraphNode
 */

/** Prefix of the names of our widgets. */
export const WIDGET = "wan_trainer_status";
/** Number of created widgets. */
let made = 0;
/** Margin of the canvas above and below a widget, in pixels. */
export const MARGINS = 20;
/** Height of a hidden row: compensates the gap that the canvas adds to every row. */
const NO_ROW = () => [0, -4];

/**
 * Creates a display-only widget. It is added last and never saved, so that it shifts no value of a workflow.
 * @param {GraphNode} node
 * @param {HTMLElement} shown
 * @param {{ least: () => number, most?: () => number, name?: string }} height in pixels, margins included
 */
export function addWidget(node, shown, { least, most, name = WIDGET }) {
  made += 1;
  // The name is unique: Vue nodes reuse the element of a widget if node id and name are equal, even in another workflow.
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
 * Keeps a widget as wide as its node: the page's side panel also draws unknown widgets, and sets its own width. Newer
 * frontends have an option against it.
 * @param {object} widget
 */
function keepWidth(widget) {
  Object.defineProperty(widget, "width", { get: () => undefined, set: () => {} });
}

/**
 * Keeps the page from drawing a node's pictures and clips, finished or live, because our widget shows them.
 * @param {GraphNode} node
 */
export function hideOutputs(node) {
  node.hideOutputImages = true;
  node.onDrawBackground = () => {};
}

/**
 * Adapts the node's height to a widget of changing height; LiteGraph itself only enlarges nodes. Height that the user added
 * is kept.
 * @param {any} node
 * @returns {() => void} called when the widget's least height has changed
 */
export function room(node) {
  /** The user's height, and the minimum height at the last call. */
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

/** Redraws the canvas twice: the first draw adapts the node's height, the second one shows it. @param {GraphNode} node */
export function makeRoom(node) {
  const draw = () => node.setDirtyCanvas?.(true, true);
  draw();
  requestAnimationFrame(() => requestAnimationFrame(draw));
}

/**
 * Lets the wheel zoom the canvas over a widget; Vue nodes forward the event themselves.
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
    // Newer pages keep the first object; older pages need a new one to notice the change.
    widget.options = { ...Object.assign(widget.options ?? {}, { hidden }) };
    if (hidden) widget.computeSize = NO_ROW;
    else delete widget.computeSize;
  }
  if (!turned.some((widget) => Object.hasOwn(widget, "hidden"))) return;
  const all = [...(node.widgets ?? [])];
  node.widgets = []; // assigning the same list would not count as a change
  node.widgets = all;
}

/**
 * Calls `change`, then adapts the node's height.
 * @param {GraphNode} node
 * @param {boolean} exact true: the node grows and shrinks with its rows; false: it only grows if its rows do not fit
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
