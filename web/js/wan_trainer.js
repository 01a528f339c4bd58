// @ts-check
/**
 * The one file ComfyUI's page loads: a status line in the nodes that work for long, and loader lists that know a LoRA
 * as soon as it is saved. It only draws what `wan_trainer.status` messages and the outputs of nodes say.
 */

// @ts-expect-error served by ComfyUI
import { api } from "../../../scripts/api.js";
// @ts-expect-error served by ComfyUI
import { app } from "../../../scripts/app.js";
import { findNode, SaveWatch, summaryText } from "./lib/status.mjs";

const STATUS_EVENT = "wan_trainer.status";
const STATUS_NODES = ["CacheLatents", "TrainLoRA", "ValidateVideo"];
const VIDEO_NODES = ["TrainLoRA", "ValidateVideo"];
const WIDGET = "wan_trainer_status";
const LINE_HEIGHT = 48;
// The page's own colours, so that light and dark themes both read well.
const LINE_STYLE = `box-sizing: border-box; height: 100%; overflow: hidden; padding: 4px 8px; border-radius: 6px;
  font: 12px/1.3 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);`;

/**
 * @typedef {import("./lib/status.mjs").Status} Status
 * @typedef {{ getNodeById: (id: number) => GraphNode | null }} Graph
 * @typedef {{ comfyClass?: string, previewMediaType?: string, subgraph?: Graph, wanTrainerStatus?: HTMLElement,
 *   addDOMWidget: Function }} GraphNode
 */

const saves = new SaveWatch();

/** Texts that wait for the next frame: the line each belongs to, and its newest text. @type {Map<HTMLElement, string>} */
const waiting = new Map();

/**
 * The line under the widgets. Added last and never saved, so that it shifts no value of a workflow.
 * @param {GraphNode} node
 */
function addStatusLine(node) {
  const line = document.createElement("div");
  line.className = "wan-trainer-status";
  line.style.cssText = LINE_STYLE;
  line.textContent = "idle";
  const widget = node.addDOMWidget(WIDGET, WIDGET, line, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => LINE_HEIGHT,
    getMaxHeight: () => LINE_HEIGHT,
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
  node.wanTrainerStatus = line;
}

/**
 * Show a text in the line of a node, with whatever else changes in the same frame.
 * @param {string} id
 * @param {string} text
 */
function show(id, text) {
  const line = findNode(/** @type {Graph} */ (app.rootGraph ?? app.graph), id)?.wanTrainerStatus;
  if (!line) return;
  if (!waiting.size) requestAnimationFrame(draw);
  waiting.set(line, text);
}

function draw() {
  for (const [line, text] of waiting) {
    line.textContent = text;
    line.title = text;
  }
  waiting.clear();
}

app.registerExtension({
  name: "WanTrainer",

  setup() {
    api.addEventListener(STATUS_EVENT, (/** @type {{ detail: Status }} */ { detail }) => {
      show(detail.node, detail.text);
      if (saves.isNew(detail)) app.refreshComboInNodes?.();
    });
    // Also sent when ComfyUI kept the output and ran nothing.
    api.addEventListener("executed", (/** @type {{ detail: any }} */ { detail }) => {
      const run = detail.output?.wan_run?.[0];
      if (run) show(detail.display_node ?? detail.node, summaryText(run));
    });
    api.addEventListener("execution_error", (/** @type {{ detail: any }} */ { detail }) => {
      show(detail.node_id, `failed: ${String(detail.exception_message).trim()}`);
    });
  },

  /** @param {GraphNode} node */
  nodeCreated(node) {
    const kind = node.comfyClass ?? "";
    if (VIDEO_NODES.includes(kind)) node.previewMediaType = "video";
    if (STATUS_NODES.includes(kind)) addStatusLine(node);
  },
});
