// @ts-check
/**
 * A workflow that opens as an app (frontend 1.41.13 and later) lists its widgets in `extra.linearData.inputs` as (node
 * id, widget name). The names of our panels and cards differ in every opened workflow, so a workflow has PANEL, which is
 * replaced here. Pure.
 */

import { WIDGET } from "./widget.mjs";

/** @typedef {import("./graph.mjs").GraphNode} GraphNode */

const PANEL = "wan_trainer_panel";
/** Name of the panel in a workflow, and pattern of its names in saved apps. */
const NAMES = new RegExp(`^(${PANEL}|${WIDGET}_\\d+)$`);

/**
 * @param {any} extra of the loaded graph
 * @param {GraphNode} node a loaded one, with a panel or card
 */
export function namePanel(extra, node) {
  const inputs = extra?.linearData?.inputs;
  const shown = node.widgets?.find(({ name }) => NAMES.test(name))?.name;
  if (!Array.isArray(inputs) || !shown) return;
  for (const input of inputs) {
    if (!Array.isArray(input) || !NAMES.test(String(input[1]))) continue;
    const [graph, id, ...more] = String(input[0]).split(":");
    // Handwritten entries have a node id; the page saves graph, node and widget name.
    if (more.length) {
      if (id !== String(node.id)) continue;
      input[0] = [graph, id, shown].join(":");
    } else if (String(input[0]) !== String(node.id)) continue;
    input[1] = shown;
  }
}
