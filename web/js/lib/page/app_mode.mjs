// @ts-check
/**
 * A workflow that opens as an app (frontend 1.41.13 and later) lists its widgets in `extra.linearData.inputs` as (node
 * id, widget name). The names of our panels and cards differ in every opened workflow, so a workflow has PANEL, which is
 * replaced here. Pure.
 */

import { WIDGET } from "./widget.mjs";

/** @typedef {import("./graph.mjs").GraphNode} GraphNode */

const PANEL = "wan_trainer_panel";
/** The panel as a workflow calls it, and as it was called when an app was saved. */
const NAMES = new RegExp(`^(${PANEL}|${WIDGET}_\\d+)$`);

/**
 * @param {any} extra of the graph that was loaded
 * @param {GraphNode} node that was loaded, with a panel or card
 */
export function namePanel(extra, node) {
  const inputs = extra?.linearData?.inputs;
  const shown = node.widgets?.find(({ name }) => NAMES.test(name))?.name;
  if (!Array.isArray(inputs) || !shown) return;
  for (const input of inputs) {
    if (!Array.isArray(input) || !NAMES.test(String(input[1]))) continue;
    const [graph, id, ...more] = String(input[0]).split(":");
    // Written by hand: a node id; saved by the page: graph, node and name of the widget.
    if (more.length) {
      if (id !== String(node.id)) continue;
      input[0] = [graph, id, shown].join(":");
    } else if (String(input[0]) !== String(node.id)) continue;
    input[1] = shown;
  }
}
