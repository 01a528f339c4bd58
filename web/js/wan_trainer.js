// @ts-check
/**
 * The one file ComfyUI's page loads: a status line in the nodes that work for long, the panel in Train Wan LoRA, the tab
 * "Training runs", and loader lists that know a LoRA as soon as it is saved. What is drawn comes from lib/.
 */

// @ts-expect-error served by ComfyUI
import { api } from "../../../scripts/api.js";
// @ts-expect-error served by ComfyUI
import { app } from "../../../scripts/app.js";
import { runOfNode } from "./lib/binding.mjs";
import { element } from "./lib/dom.mjs";
import { Frames } from "./lib/pacing.mjs";
import { Panel } from "./lib/panel.mjs";
import { Routes } from "./lib/routes.mjs";
import { RunsTab } from "./lib/runs_tab.mjs";
import { findNode, nodes, outputText, SaveWatch } from "./lib/status.mjs";

const STATUS_EVENT = "wan_trainer.status";
const TRAINER = "TrainLoRA";
const LINE_NODES = ["CacheLatents", "ValidateVideo"];
const VIDEO_NODES = [TRAINER, "ValidateVideo"];
const WIDGET = "wan_trainer_status";
// Two lines of text, and the 10 pixels the canvas leaves above and below.
const LINE_HEIGHT = 60;
const MARGINS = 20;
// The page's own colours, so that light and dark themes both read well.
const LINE_STYLE = `box-sizing: border-box; height: 100%; overflow: hidden; padding: 4px 8px; border-radius: 6px;
  font: 12px/1.3 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);`;

/**
 * @typedef {import("./lib/status.mjs").Status} Status
 * @typedef {{ id?: string, nodes?: GraphNode[], _nodes?: GraphNode[], links?: any,
 *   getNodeById: (id: number) => GraphNode | null }} Graph
 * @typedef {{ id: number, comfyClass?: string, previewMediaType?: string, hideOutputImages?: boolean, graph?: Graph,
 *   subgraph?: Graph, widgets?: { name: string, value: unknown, callback?: Function }[],
 *   wanTrainerStatus?: HTMLElement, wanTrainerPanel?: Panel, addDOMWidget: Function, getInputNode?: Function,
 *   inputs?: { name: string }[], setDirtyCanvas?: Function }} GraphNode
 */

const saves = new SaveWatch();
const frames = new Frames(requestAnimationFrame.bind(window));
const routes = new Routes((path, options) => api.fetchApi(path, options));

/** Texts that wait for the next frame: the line each belongs to, and its newest text. @type {Map<HTMLElement, string>} */
const waiting = new Map();

const tab = new RunsTab(routes, frames, {
  load: async (graph, name) => {
    if (Array.isArray(graph.nodes)) await app.loadGraphData(graph, true, true, name);
    else await app.loadApiJson(graph, name);
  },
  queue: () => app.queuePrompt(0, 1),
  copy: (text) => navigator.clipboard.writeText(text),
  seen: bindIdle,
});

/**
 * A widget that only shows. Added last and never saved, so that it shifts no value of a workflow.
 * @param {GraphNode} node
 * @param {HTMLElement} shown
 * @param {{ least: () => number, most?: () => number }} height
 */
function addWidget(node, shown, { least, most }) {
  const widget = node.addDOMWidget(WIDGET, WIDGET, shown, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: least,
    ...(most ? { getMaxHeight: most } : {}),
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
}

/** @param {GraphNode} node */
function addStatusLine(node) {
  const line = element("div", { class: "wan-trainer-status" }, "idle");
  line.style.cssText = LINE_STYLE;
  addWidget(node, line, { least: () => LINE_HEIGHT, most: () => LINE_HEIGHT });
  node.wanTrainerStatus = line;
}

/** @param {GraphNode} node */
function addPanel(node) {
  const panel = new Panel({
    routes,
    frames,
    address: (path) => api.apiURL(path),
    grew: () => node.setDirtyCanvas?.(true, true),
  });
  addWidget(node, panel.element, { least: () => panel.least + MARGINS });
  node.wanTrainerPanel = panel;
  node.wanTrainerStatus = panel.status;
  // The panel plays the previews, beside the one from before training.
  node.hideOutputImages = true;
  panel.element.addEventListener("wheel", (event) => {
    // Vue nodes hand the wheel on themselves.
    if (!app.canvas || panel.element.closest("[data-node-id]")) return;
    event.preventDefault();
    app.canvas.processMouseWheel(event);
  });
  const name = node.widgets?.find((widget) => widget.name === "run_name");
  if (!name) return;
  const changed = name.callback;
  name.callback = function (/** @type {unknown[]} */ ...values) {
    const result = changed?.apply(this, values);
    bindByName(node, tab.runs);
    return result;
  };
}

/** @returns {Graph} */
function root() {
  return app.rootGraph ?? app.graph;
}

/** @param {string} id */
function panelOf(id) {
  return findNode(root(), id)?.wanTrainerPanel;
}

/**
 * Show the run a node's run_name leads to. A run that trains stays where it is shown.
 * @param {GraphNode} node
 * @param {import("./lib/routes.mjs").Summary[]} runs
 */
function bindByName(node, runs) {
  const panel = node.wanTrainerPanel;
  const name = node.widgets?.find((widget) => widget.name === "run_name")?.value;
  if (!panel || panel.live) return;
  const run = runOfNode(runs, String(name ?? ""));
  if (run?.id !== panel.run || run?.live)
    panel.bind(run ? String(run.id) : null, Boolean(run?.live));
}

/** Nodes that wait for the list of runs: those of a workflow just loaded. @type {Set<GraphNode>} */
const unbound = new Set();

/** @param {import("./lib/routes.mjs").Summary[]} runs */
function bindIdle(runs) {
  for (const node of unbound) bindByName(node, runs);
  unbound.clear();
}

/** Read everything again: the connection was lost, and with it messages. */
function refreshAll() {
  for (const node of nodes(root())) node.wanTrainerPanel?.refresh();
  tab.refresh();
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
 * The clips of Train Wan LoRA play in its panel; the page would show the last one a second time below it.
 * @param {CustomEvent} event
 */
function dropClips({ detail }) {
  const node = findNode(root(), detail.display_node ?? detail.node);
  if (!node?.wanTrainerPanel || !detail.output) return;
  const { images: _images, animated: _animated, ...output } = detail.output;
  detail.output = output;
}

/**
 * A node began to execute: encoding shows as the Cache stage of the nodes it feeds.
 * @param {string | null | undefined} id
 */
function onExecuting(id) {
  const working = id ? findNode(root(), id) : null;
  for (const node of nodes(root())) {
    const panel = node.wanTrainerPanel;
    if (!panel) continue;
    if (working && cacheOf(node) === working) panel.enter("Cache");
    else if (node !== working) panel.enter(null);
  }
}

/** @param {GraphNode} node @returns {GraphNode | null} the node its cache comes from */
function cacheOf(node) {
  const slot = node.inputs?.findIndex((input) => input.name === "cache") ?? -1;
  return slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
}

/**
 * Show a text in the line of a node, with whatever else changes in the same frame.
 * @param {string} id
 * @param {string} text
 */
function show(id, text) {
  const panel = panelOf(id);
  if (panel) {
    panel.write(text);
    return;
  }
  const line = findNode(root(), id)?.wanTrainerStatus;
  if (!line) return;
  frames.ask(drawLines);
  waiting.set(line, text);
}

function drawLines() {
  for (const [line, text] of waiting) {
    line.textContent = text;
    line.title = text;
  }
  waiting.clear();
}

/** @param {Status} status */
function onStatus(status) {
  const panel = panelOf(status.node);
  if (panel) panel.onStatus(status);
  else show(status.node, status.text);
  if (saves.isNew(status)) app.refreshComboInNodes?.();
  if (status.run) tab.onStatus();
}

/** Sent when a node has ended, also when ComfyUI kept its output and ran nothing. @param {any} detail */
function onExecuted(detail) {
  const id = detail.display_node ?? detail.node;
  const run = detail.output?.wan_run?.[0]?.run;
  if (typeof run === "string") panelOf(id)?.bind(run);
  const text = outputText(findNode(root(), id)?.comfyClass, detail.output);
  if (text) show(id, text);
}

function watchTheme() {
  const redraw = () => {
    for (const node of nodes(root())) node.wanTrainerPanel?.plot.ask();
    tab.plot.ask();
  };
  const watch = { attributes: true, attributeFilter: ["class", "style", "data-theme"] };
  for (const place of [document.documentElement, document.body])
    new MutationObserver(redraw).observe(place, watch);
}

app.registerExtension({
  name: "WanTrainer",

  setup() {
    document.head.append(
      element("link", {
        rel: "stylesheet",
        href: new URL("./wan_trainer.css", import.meta.url).href,
      }),
    );
    api.addEventListener(STATUS_EVENT, (/** @type {{ detail: Status }} */ event) =>
      onStatus(event.detail),
    );
    api.addEventListener("executed", dropClips, { capture: true });
    api.addEventListener("executed", (/** @type {{ detail: any }} */ event) =>
      onExecuted(event.detail),
    );
    api.addEventListener("executing", (/** @type {{ detail: any }} */ event) =>
      onExecuting(event.detail?.node ?? event.detail),
    );
    api.addEventListener("b_preview_with_metadata", dropPicture, { capture: true });
    api.addEventListener("execution_error", (/** @type {{ detail: any }} */ { detail }) => {
      show(detail.node_id, `failed: ${String(detail.exception_message).trim()}`);
      panelOf(detail.node_id)?.refresh();
    });
    for (const event of ["execution_interrupted", "reconnected"])
      api.addEventListener(event, refreshAll);
    watchTheme();
    app.extensionManager?.registerSidebarTab?.({
      id: "wan-trainer-runs",
      icon: "pi pi-chart-line",
      title: "Training runs",
      tooltip: "Training runs",
      type: "custom",
      render: (/** @type {HTMLElement} */ place) => tab.mount(place),
      destroy: () => tab.unmount(),
    });
  },

  /** @param {GraphNode} node */
  nodeCreated(node) {
    const kind = node.comfyClass ?? "";
    if (VIDEO_NODES.includes(kind)) node.previewMediaType = "video";
    if (LINE_NODES.includes(kind)) addStatusLine(node);
    if (kind === TRAINER) addPanel(node);
  },

  /** @param {GraphNode} node */
  loadedGraphNode(node) {
    if (!node.wanTrainerPanel) return;
    unbound.add(node);
    tab.refresh();
  },
});
