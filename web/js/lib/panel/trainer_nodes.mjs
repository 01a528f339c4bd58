// @ts-check
/** The TrainLoRA nodes of the canvas and the run each of them shows. */

import { findNode, nodes } from "../page/graph.mjs";
import { addWidget, MARGINS, makeRoom, watchWidgets, zoomThrough } from "../page/widget.mjs";
import { runOfNode } from "../run/binding.mjs";
import { Panel } from "./panel.mjs";

/**
 * @typedef {import("../page/graph.mjs").Graph} Graph
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("../page/routes.mjs").Summary} Summary
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
    /** Nodes of a workflow just loaded, which wait for the list of runs. @type {Set<GraphNode>} */
    this.waiting = new Set();
    /** The newest list of runs. @type {Summary[]} */
    this.runs = [];
  }

  /** @param {GraphNode} node a new one */
  add(node) {
    const panel = new Panel({
      routes: this.routes,
      frames: this.frames,
      address: (path) => this.api.apiURL(path),
      grew: () => makeRoom(node),
    });
    addWidget(node, panel.element, { least: () => panel.least + MARGINS });
    node.wanTrainerPanel = panel;
    node.wanTrainerStatus = panel.status;
    // The panel plays the previews, beside the one from before training.
    node.hideOutputImages = true;
    panel.element.addEventListener("wheel", (event) => zoomThrough(this.app.canvas, event));
    watchWidgets(
      node,
      (name) => name === RUN_NAME,
      () => this.bind(node),
    );
  }

  /** @param {GraphNode} node @returns {boolean} whether it is one of ours, and the list of runs is wanted */
  loaded(node) {
    if (!node.wanTrainerPanel) return false;
    this.waiting.add(node);
    return true;
  }

  /** @param {Summary[]} runs the list as it is now */
  onRuns(runs) {
    this.runs = runs;
    for (const node of this.waiting) this.bind(node);
    this.waiting.clear();
  }

  /** Show the run a node's run_name leads to. A run that trains stays where it is shown. @param {GraphNode} node */
  bind(node) {
    const panel = node.wanTrainerPanel;
    if (!panel || panel.live) return;
    const run = runOfNode(this.runs, String(runName(node)?.value ?? ""));
    const id = run ? String(run.id) : null;
    if (id !== panel.run || run?.live) panel.bind(id, Boolean(run?.live));
  }

  /** @param {string} id @returns {Panel | undefined} */
  panelOf(id) {
    return findNode(this.root(), id)?.wanTrainerPanel;
  }

  /** Read every run again: messages were lost, or something ended. */
  refresh() {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.refresh();
  }

  redraw() {
    for (const node of nodes(this.root())) node.wanTrainerPanel?.plot.ask();
  }

  /**
   * The clips of Train Wan LoRA play in its panel; the page would show the last one a second time below it.
   * @param {CustomEvent} event
   */
  dropClips({ detail }) {
    if (!detail.output || !this.panelOf(detail.display_node ?? detail.node)) return;
    const { images: _images, animated: _animated, ...output } = detail.output;
    detail.output = output;
  }

  /**
   * A node began to execute: encoding shows as the Cache stage of the nodes it feeds.
   * @param {string | null | undefined} id
   */
  onExecuting(id) {
    const working = id ? findNode(this.root(), id) : null;
    for (const node of nodes(this.root())) {
      const panel = node.wanTrainerPanel;
      if (!panel) continue;
      if (working && cacheOf(node) === working) panel.enter("Cache");
      else if (node !== working) panel.enter(null);
    }
  }
}

/** @param {GraphNode} node */
function runName(node) {
  return node.widgets?.find((widget) => widget.name === RUN_NAME);
}

/** @param {GraphNode} node @returns {GraphNode | null} the node its cache comes from */
function cacheOf(node) {
  const slot = node.inputs?.findIndex((input) => input.name === "cache") ?? -1;
  return slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
}
