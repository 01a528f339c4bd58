// @ts-check
/** The TrainLoRA nodes of the canvas, and the run that each one shows. */

import { findNode, nodes, placed } from "../page/graph.mjs";
import {
  addWidget,
  hideOutputs,
  MARGINS,
  room,
  watchWidgets,
  zoomThrough,
} from "../page/widget.mjs";
import { t } from "../page/words.mjs";
import { Prompts, runOfNode, takers } from "../run/binding.mjs";
import { openInTab } from "../run/generate.mjs";
import { chipOf } from "../run/stages.mjs";
import { Panel } from "./panel.mjs";

/**
 * @typedef {import("../page/graph.mjs").Graph} Graph
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("../run/status.mjs").Status} Status
 */

const RUN_NAME = "run_name";

export class TrainerNodes {
  /**
   * @param {{ app: any, api: any, routes: import("../page/routes.mjs").Routes, frames: import("../page/pacing.mjs").Frames,
   *   root: () => Graph }} page
   */
  constructor({ app, api, routes, frames, root }) {
    this.app = app;
    this.api = api;
    this.routes = routes;
    this.frames = frames;
    this.root = root;
    /** Nodes of a loaded workflow that wait for the list of runs. @type {Set<GraphNode>} */
    this.waiting = new Set();
    /** Nodes whose run was deleted while they showed it. @type {WeakSet<GraphNode>} */
    this.bereft = new WeakSet();
    /** The newest list of runs. @type {Summary[]} */
    this.runs = [];
    this.prompts = new Prompts();
    /** The newest clip of Validate Video. */
    this.clip = "";
  }

  /** @param {GraphNode} node a new one */
  add(node) {
    const panel = new Panel({
      routes: this.routes,
      frames: this.frames,
      address: (path) => this.api.apiURL(path),
      grew: room(node),
      lost: (run) => this.onLost(node, run),
      queue: () => this.app.queuePrompt(0, 1),
      open: (graph, name) => openInTab(this.app, graph, name),
      copy: (text) => navigator.clipboard.writeText(text),
    });
    const widget = addWidget(node, panel.element, { least: () => panel.least + MARGINS });
    widget.label = t("Training"); // title of the panel in an app
    // A node whose run_name changed after queueing still shows the run it trains.
    widget.beforeQueued = () => {
      panel.queued.add(String(runName(node)?.value ?? ""));
      panel.isQueued = true;
    };
    node.wanTrainerPanel = panel;
    node.wanTrainerStatus = panel.line.element;
    hideOutputs(node);
    panel.element.addEventListener("wheel", (event) => zoomThrough(this.app.canvas, event));
    watchWidgets(
      node,
      (name) => name === RUN_NAME,
      () => this.bind(node),
    );
    const before = node.onRemoved;
    node.onRemoved = function (/** @type {unknown[]} */ ...values) {
      panel.bind(null); // stops requests of a closed workflow
      return before?.apply(this, values);
    };
  }

  /** @param {GraphNode} node @returns {boolean} whether it is a TrainLoRA, which needs the list of runs */
  loaded(node) {
    if (!node.wanTrainerPanel) return false;
    this.waiting.add(node);
    return true;
  }

  /** @param {Summary[]} runs the newest list */
  onRuns(runs) {
    this.runs = runs;
    for (const node of nodes(this.root())) {
      const panel = node.wanTrainerPanel;
      if (this.bereft.has(node) && !panel?.run) this.waiting.add(node);
      // The run was deleted: the panel's next read notices it.
      if (panel?.detail && !panel.live && !runs.some(({ id }) => id === panel.run)) panel.refresh();
    }
    // Messages during the request are newer than its list.
    for (const node of this.waiting) if (!node.wanTrainerPanel?.run) this.bind(node, true);
    this.waiting.clear();
  }

  /**
   * Called when a node's run no longer exists: its name may now belong to another run.
   * @param {GraphNode} node
   * @param {string} run
   */
  async onLost(node, run) {
    this.bereft.add(node);
    // Without a list, the node shows no run until the next list.
    const runs = await this.routes.list().catch(() => this.runs);
    // A list that still has the deleted run would select it again.
    this.onRuns(runs.filter(({ id }) => String(id) !== run));
  }

  /**
   * Shows the run with the node's run_name. A node keeps a run that it trains.
   * @param {GraphNode} node
   * @param {boolean} heard whether the status line is about that run
   */
  bind(node, heard = false) {
    const panel = node.wanTrainerPanel;
    if (!panel || panel.live) return;
    const all = [...placed(this.root())].filter((one) => one.node.wanTrainerPanel);
    const run = runOfNode(this.runs, String(runName(node)?.value ?? ""), {
      id: all.find((one) => one.node === node)?.id,
      others: all.filter((one) => one.node !== node).map((one) => one.id),
      expert: widgetValue(node, "expert"),
    });
    const id = run ? String(run.id) : null;
    if (id !== panel.run || run?.live) panel.bind(id, { live: Boolean(run?.live), heard });
  }

  /** @param {string} id @returns {Panel | undefined} */
  panelOf(id) {
    return findNode(this.root(), id)?.wanTrainerPanel;
  }

  /** Reads all runs again, after lost messages or the end of a run. */
  refresh() {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.refresh();
  }

  redraw() {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.plot.ask();
  }

  /**
   * Passes a message to the panels that show its run.
   * @param {Status} status
   */
  onStatus(status) {
    this.prompts.learn(status);
    const here = this.isHere(status);
    const all = [...placed(this.root())].filter(({ node }) => node.wanTrainerPanel);
    const places = all.map(({ id, node }) => ({
      id,
      name: nameOf(node),
      run: node.wanTrainerPanel?.run ?? null,
      queued: node.wanTrainerPanel?.queued,
    }));
    const ids = takers(status, places, here);
    for (const { id, node } of all) if (ids.includes(id)) node.wanTrainerPanel?.onStatus(status);
    if (status.of_run && status.sample) this.onClip(status.of_run, status.sample);
    if (here && !status.run) this.onWork(status);
  }

  /** Whether a message comes from the graph on the page. @param {{ prompt_id?: string, graph?: string }} message */
  isHere(message) {
    return this.prompts.isHere(message, this.root()?.id);
  }

  /** Called when another node works: encoding is the Cache stage of the trainers that it feeds. @param {Status} status */
  onWork(status) {
    const working = findNode(this.root(), status.node);
    for (const node of nodes(this.root())) {
      const panel = node.wanTrainerPanel; // tested first: other nodes may lack getInputNode
      if (panel && working && cacheOf(node) === working) panel.enter(chipOf(status.stage), status);
    }
  }

  /** Called when a graph queued by this page starts or ends. @param {boolean} on */
  waits(on) {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.waits(on);
  }

  /** Called when execution has ended. @param {string} [failed] title of the failed node */
  rest(failed = "") {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.rest(failed);
  }

  /** Called when a clip was rendered for a run; later messages repeat the clip. @param {string} run @param {string} file */
  onClip(run, file) {
    if (this.clip === file) return;
    this.clip = file;
    for (const node of nodes(this.root())) {
      if (node.wanTrainerPanel?.run === run) node.wanTrainerPanel.refresh();
    }
  }

  /** Reads live runs, in case no message comes. */
  pulse() {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.pulse();
  }
}

/** @param {GraphNode} node */
function runName(node) {
  return node.widgets?.find((widget) => widget.name === RUN_NAME);
}

/** @param {GraphNode} node @param {string} name of a widget */
function widgetValue(node, name) {
  return node.widgets?.find((widget) => widget.name === name)?.value;
}

/** @param {GraphNode} node @returns {string | null} null if the input is linked */
function nameOf(node) {
  const slot = node.inputs?.findIndex((input) => input.name === RUN_NAME) ?? -1;
  if (slot >= 0 && node.getInputNode?.(slot)) return null;
  return String(runName(node)?.value ?? "");
}

/** @param {GraphNode} node @returns {GraphNode | null} the node linked to its cache input */
function cacheOf(node) {
  const slot = node.inputs?.findIndex((input) => input.name === "cache") ?? -1;
  return slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
}
