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

/**
 * A widget that only shows. Added last and never saved, so that it shifts no value of a workflow.
 * @param {GraphNode} node
 * @param {HTMLElement} shown
 * @param {{ least: () => number, most?: () => number }} height in pixels, margins included
 */
export function addWidget(node, shown, { least, most }) {
  made += 1;
  // Vue nodes keep the element of a widget whose node and name stay: in another workflow the ids are the same.
  const widget = node.addDOMWidget(`${WIDGET}_${made}`, WIDGET, shown, {
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
 * Newer frontends can be told not to.
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
