// @ts-check
/**
 * The one file ComfyUI's page loads: a status line in the nodes that work for long, and loader lists that know a LoRA
 * as soon as it is saved. It only draws what `wan_trainer.status` messages and the outputs of nodes say.
 */

// @ts-expect-error served by ComfyUI
import { api } from "../../../scripts/api.js";
// @ts-expect-error served by ComfyUI
import { app } from "../../../scripts/app.js";
import { clipOutput, findNode, outputText, SaveWatch } from "./lib/status.mjs";

const STATUS_EVENT = "wan_trainer.status";
const STATUS_NODES = ["CacheLatents", "TrainLoRA", "ValidateVideo"];
const VIDEO_NODES = ["TrainLoRA", "ValidateVideo"];
const WIDGET = "wan_trainer_status";
// Two lines of text, and the 10 pixels the canvas leaves above and below.
const LINE_HEIGHT = 60;
// The page's own colours, so that light and dark themes both read well.
const LINE_STYLE = `box-sizing: border-box; height: 100%; overflow: hidden; padding: 4px 8px; border-radius: 6px;
  font: 12px/1.3 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);`;

/**
 * @typedef {import("./lib/status.mjs").Status} Status
 * @typedef {{ id?: string, getNodeById: (id: number) => GraphNode | null }} Graph
 * @typedef {{ id: number, comfyClass?: string, previewMediaType?: string, graph?: Graph, subgraph?: Graph,
 *   wanTrainerStatus?: HTMLElement, wanTrainerClip?: string, addDOMWidget: Function,
 *   setDirtyCanvas?: Function }} GraphNode
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

/** @returns {Graph} */
function root() {
  return app.rootGraph ?? app.graph;
}

/**
 * Play a preview clip in the node while the run goes on, as its output will at the end.
 * @param {Status} status
 */
function play(status) {
  const node = findNode(root(), status.node);
  if (!node || !status.sample || !status.run || node.wanTrainerClip === status.sample) return;
  node.wanTrainerClip = status.sample;
  const place = node.graph === root() ? `${node.id}` : `${node.graph?.id}:${node.id}`;
  app.nodeOutputs[place] = clipOutput(status.run, status.sample);
  node.setDirtyCanvas?.(true, true);
}

/**
 * Live pictures of a node that shows clips: the page would put the picture into the video, which then stays black. The
 * clip itself follows at once.
 * @param {CustomEvent} event
 */
function dropPicture(event) {
  const id = event.detail?.displayNodeId ?? event.detail?.nodeId;
  const node = id === undefined ? null : findNode(root(), id);
  if (VIDEO_NODES.includes(node?.comfyClass ?? "")) event.stopImmediatePropagation();
}

/**
 * Show a text in the line of a node, with whatever else changes in the same frame.
 * @param {string} id
 * @param {string} text
 */
function show(id, text) {
  const line = findNode(root(), id)?.wanTrainerStatus;
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
      play(detail);
      if (saves.isNew(detail)) app.refreshComboInNodes?.();
    });
    // Also sent when ComfyUI kept the output and ran nothing.
    api.addEventListener("executed", (/** @type {{ detail: any }} */ { detail }) => {
      const id = detail.display_node ?? detail.node;
      const text = outputText(findNode(root(), id)?.comfyClass, detail.output);
      if (text) show(id, text);
    });
    api.addEventListener("b_preview_with_metadata", dropPicture, { capture: true });
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
