// @ts-check
/**
 * A workflow that opens as an app (frontend 1.41.13 and later) lists the widgets it shows in `extra.linearData.inputs`, pairs of
 * a node's id and the name of a widget. That of our panel is another one in every workflow that is opened, so a workflow says
 * PANEL, and here it gets the name it has. Pure.
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
    // Written by hand, an id alone; saved by the page, that of the widget: graph, node, name.
    if (more.length) {
      if (id !== String(node.id)) continue;
      input[0] = [graph, id, shown].join(":");
    } else if (String(input[0]) !== String(node.id)) continue;
    input[1] = shown;
  }
}
