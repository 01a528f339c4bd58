// @ts-check
/**
 * The one file ComfyUI's page loads: a status line in TrainLoRA and CacheLatents, and loader lists that know a LoRA as
 * soon as it is saved. It only draws; everything it shows comes from `wan_trainer.status` messages.
 */

// @ts-expect-error served by ComfyUI
import { api } from "../../scripts/api.js";
// @ts-expect-error served by ComfyUI
import { app } from "../../scripts/app.js";

const STATUS_EVENT = "wan_trainer.status";
const STATUS_NODES = ["TrainLoRA", "CacheLatents"];
const VIDEO_NODES = ["TrainLoRA", "ValidateVideo"];
const WIDGET = "wan_trainer_status";

/**
 * @typedef {{ node: string, text: string, state?: string, saved_step?: number }} Status
 * @typedef {{ id: number, comfyClass?: string, previewMediaType?: string, subgraph?: Graph,
 *   wanTrainerStatus?: HTMLElement, addDOMWidget: Function }} GraphNode
 * @typedef {{ getNodeById: (id: number) => GraphNode | null }} Graph
 */

/** Saved step last seen per node, so that the lists are fetched once per save. */
const savedSteps = new Map();

/**
 * The node an event names. Inside subgraphs the id is a path such as "3:1".
 * @param {string} id
 * @returns {GraphNode | null}
 */
function findNode(id) {
  /** @type {Graph | undefined} */
  let graph = app.rootGraph ?? app.graph;
  /** @type {GraphNode | null} */
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

/**
 * The line under the widgets. Added last and never saved, so that it shifts no value of a workflow.
 * @param {GraphNode} node
 */
function addStatusLine(node) {
  const line = document.createElement("div");
  line.className = "wan-trainer-status";
  line.style.cssText =
    "font: 12px monospace; padding: 2px 6px; overflow: hidden; white-space: pre-wrap;";
  line.textContent = "idle";
  const widget = node.addDOMWidget(WIDGET, "wan_trainer_status", line, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => 34,
    getMaxHeight: () => 34,
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
  node.wanTrainerStatus = line;
}

/** @param {{ detail: Status }} event */
function onStatus({ detail }) {
  const line = findNode(detail.node)?.wanTrainerStatus;
  if (line) {
    line.textContent = detail.text;
    line.title = detail.text;
  }
  const ended = detail.state === "done" || detail.state === "stopped";
  const key = `${detail.saved_step ?? ""}${ended ? detail.state : ""}`;
  if (key && savedSteps.get(detail.node) !== key) {
    savedSteps.set(detail.node, key);
    app.refreshComboInNodes?.();
  }
}

app.registerExtension({
  name: "WanTrainer",

  setup() {
    api.addEventListener(STATUS_EVENT, onStatus);
  },

  /** @param {GraphNode} node */
  nodeCreated(node) {
    const kind = node.comfyClass ?? "";
    if (VIDEO_NODES.includes(kind)) node.previewMediaType = "video";
    if (STATUS_NODES.includes(kind)) addStatusLine(node);
  },
});
