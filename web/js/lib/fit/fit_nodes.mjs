// @ts-check
/**
 * Requests a plan of each training on the canvas, once its widgets and links are unchanged for a while, and shows it in
 * Train Wan LoRA, the datasets and splits.
 */

import { placed } from "../page/graph.mjs";
import { kindOf } from "../page/ids.mjs";
import { isMissing } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { watchWidgets } from "../page/widget.mjs";
import { showLowNoise } from "../settings/low_noise.mjs";
import { apply, canApply } from "./apply.mjs";
import { KINDS, lacksFolder, trainingOf } from "./asked.mjs";
import { FitBar, RunLine } from "./fit_bar.mjs";
import { PresetRow } from "./presets.mjs";

/**
 * @typedef {import("../page/graph.mjs").Graph} Graph
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("./asked.mjs").Training} Training
 * @typedef {import("./sentences.mjs").Plan} Plan
 * @typedef {{ training: Training | null, key: string, plan: Plan | null, asking: boolean, looking: boolean,
 *   failed: string, broken: string }} Watched `broken`: why a node of the training failed in the last run; `asking`: the plan
 *   is outdated and a new one requested; `looking`: the server still searches for suggestions
 */

const TRAINER = "TrainLoRA";
/** Milliseconds without a change of widgets before a request. */
const REST = 300;
/** Retries of suggestions whose search other requests have cut short. */
const MOST_TIMES = 5;

export class FitNodes {
  /**
   * @param {{ routes: import("../page/routes.mjs").Routes, frames: import("../page/pacing.mjs").Frames, root: () => Graph,
   *   create: (kind: string) => GraphNode | null, later?: (task: () => void, ms: number) => any }} page
   */
  constructor({ routes, frames, root, create, later = setTimeout }) {
    this.routes = routes;
    this.frames = frames;
    this.root = root;
    this.create = create;
    this.later = (/** @type {() => void} */ task, /** @type {number} */ ms) => later(task, ms);
    /** State of each trainer. @type {WeakMap<GraphNode, Watched>} */
    this.watched = new WeakMap();
    /** @type {WeakMap<GraphNode, FitBar>} */
    this.bars = new WeakMap();
    /** @type {WeakMap<GraphNode, RunLine>} */
    this.runLines = new WeakMap();
    /** @type {WeakMap<GraphNode, PresetRow>} */
    this.presets = new WeakMap();
    this.turns = 0;
    /** @type {Promise<unknown>} */
    this.line = Promise.resolve();
    this.look = this.look.bind(this);
  }

  /** @param {GraphNode} node a new one, which has its panel or card already */
  add(node) {
    const kind = kindOf(node);
    if (!KINDS.includes(kind)) return;
    this.addBar(node);
    if (kind === TRAINER) this.presets.set(node, new PresetRow(node, this.routes));
    watchWidgets(
      node,
      () => true,
      () => this.turned(),
    );
    const before = node.onConnectionsChange;
    const turned = () => this.turned();
    node.onConnectionsChange = function (/** @type {unknown[]} */ ...values) {
      turned();
      return before?.apply(this, values);
    };
    this.turned();
  }

  /** @param {GraphNode} node */
  addBar(node) {
    const place = node.wanTrainerPanel ?? node.wanTrainerCard;
    if (!place) return;
    const bar = new FitBar({
      apply: (settings) => this.take(node, settings),
      able: (settings) => this.trainingsAt(node).some((one) => canApply(one, settings)),
      changed: () => this.frames.ask(place.draw),
      brief: !node.wanTrainerPanel,
      split: kindOf(node) === "SplitAcrossGPUs",
    });
    this.bars.set(node, bar);
    const face = node.wanTrainerPanel?.face;
    if (!face) {
      place.element.insertBefore(bar.element, place.body ?? null);
      return;
    }
    face.fit.append(bar.element);
    const line = new RunLine(() => this.frames.ask(place.draw));
    face.details.standing.append(line.element);
    this.runLines.set(node, line);
  }

  /** Requests plans after a pause without changes. */
  turned() {
    this.turns += 1;
    const turn = this.turns;
    this.later(() => {
      if (turn === this.turns) this.look();
    }, REST);
  }

  /** Requests all plans again: files may have changed. */
  again() {
    for (const { node } of this.trainers()) this.watched.delete(node);
    this.look();
  }

  /** Request a plan for every training that has changed since the last request. */
  look() {
    for (const { node } of placed(this.root())) showLowNoise(node);
    for (const { node } of this.trainers()) {
      this.presets.get(node)?.look();
      const { run, detail, live } = node.wanTrainerPanel ?? {};
      const training = live || detail?.state === "running" ? null : trainingOf(node);
      // The state of a run with the same name also changes when it ends, starts or is deleted.
      const key = training
        ? JSON.stringify([training.asked, run, detail?.state, detail?.step])
        : "";
      const known = this.watched.get(node);
      if (known && known.key === key) {
        known.training = training;
        continue;
      }
      /** @type {Watched} */
      const now = {
        training,
        key,
        plan: known?.plan ?? null,
        asking: true,
        looking: false,
        failed: "",
        broken: "",
      };
      this.watched.set(node, now);
      if (training) this.ask(node, now, training);
    }
    this.draw();
  }

  /**
   * Requests the plan first, then suggestions, which take longer.
   * @param {GraphNode} node @param {Watched} mine @param {Training} training
   */
  async ask(node, mine, { asked }) {
    const current = () => this.watched.get(node) === mine;
    try {
      const plan = await this.routes.plan({ ...asked, suggest: false });
      if (!current()) return;
      mine.plan = plan;
      mine.asking = false;
      mine.looking = plan.fits === false;
      this.draw();
      if (!mine.looking) return;
      const more = await this.inLine(() => this.suggestions(asked, current));
      if (!current()) return;
      mine.plan = more ?? plan;
    } catch (error) {
      if (!current()) return;
      if (!mine.looking) mine.plan = null;
      const message = error instanceof Error ? error.message : String(error);
      mine.failed = mine.looking || isMissing(error) ? "" : message;
    }
    mine.asking = mine.looking = false;
    this.draw();
  }

  /**
   * Requests suggestions; repeats the request if another one has cut the server's search short.
   * @param {object} asked @param {() => boolean} current @returns {Promise<Plan | null>}
   */
  async suggestions(asked, current) {
    let found = null;
    for (let time = 0; time < MOST_TIMES && current(); time += 1) {
      found = await this.routes.plan({ ...asked, suggest: true });
      if (!found.more) break;
    }
    return found;
  }

  /** Runs requests one after the other, because the server ends a search when another request comes. @template T @param {() => Promise<T>} work */
  inLine(work) {
    const done = this.line.then(work);
    this.line = done.catch(() => {});
    return done;
  }

  /** Called when a node failed: shows the reason in all trainings with this node. @param {GraphNode} node @param {string} reason */
  broken(node, reason) {
    for (const { node: trainer } of this.trainers()) {
      const mine = this.watched.get(trainer);
      if (trainer !== node && mine?.training?.nodes.includes(node)) mine.broken = reason;
    }
    this.draw();
  }

  /** Clears earlier failures, when a queue entry starts. */
  begun() {
    for (const { node } of this.trainers()) {
      const mine = this.watched.get(node);
      if (mine) mine.broken = "";
    }
    this.draw();
  }

  draw() {
    const shown = new Set();
    /** @type {Map<GraphNode, import("./sentences.mjs").Plan>} */
    const plans = new Map();
    for (const { node } of this.trainers()) {
      const mine = this.watched.get(node);
      const title = (/** @type {string} */ name) => titleIn(mine?.training, name);
      const run = mine?.training ? mine.plan?.run : null;
      // The headline shows a live run; it may have ended since the plan was made.
      this.runLines.get(node)?.show(run && run.state !== "running" ? run : null, title);
      node.wanTrainerPanel?.needsFolder(Boolean(mine?.training?.datasets.some(lacksFolder)));
      const reason = mine?.broken || mine?.failed || mine?.plan?.reason;
      if (!mine?.training || (mine.plan?.fits === null && !reason)) continue;
      for (const bar of this.barsOf(mine)) {
        // If a dataset feeds several trainers, it shows the plan that does not fit.
        if (shown.has(bar) && mine.plan?.fits !== false) continue;
        if (reason) bar.fail(told(reason));
        else if (mine.plan) bar.show(mine.plan, mine.looking);
        if (mine.asking) bar.wait();
        shown.add(bar);
      }
      if (!reason && mine.plan?.cards)
        for (const part of mine.training.nodes) plans.set(part, mine.plan);
    }
    const trains = this.trainers().some(({ node }) => node.wanTrainerPanel?.live);
    for (const { node } of placed(this.root())) {
      const bar = this.bars.get(node);
      // No plans are requested while a run trains: a card keeps the last plan.
      if (plans.has(node) || !trains) node.wanTrainerCard?.showPlan(plans.get(node) ?? null);
      if (bar && !shown.has(bar)) bar.hide();
    }
  }

  /** @param {GraphNode} node whose bar was pressed @param {import("./sentences.mjs").Settings} settings */
  take(node, settings) {
    for (const training of this.trainingsAt(node)) {
      if (canApply(training, settings)) apply(training, settings, this.create);
    }
    this.look();
  }

  /** The trainings with this node that do not fit. @param {GraphNode} node */
  trainingsAt(node) {
    return [...this.trainers()]
      .map((one) => this.watched.get(one.node))
      .filter((one) => one?.plan?.fits === false && one.training?.nodes.includes(node))
      .map((one) => /** @type {Training} */ (one?.training));
  }

  /** @param {Watched} mine @returns {FitBar[]} */
  barsOf({ training }) {
    return (training?.nodes ?? []).flatMap((node) => this.bars.get(node) ?? []);
  }

  /** @returns {{ node: GraphNode }[]} */
  trainers() {
    return [...placed(this.root())].filter(({ node }) => kindOf(node) === TRAINER);
  }
}

/** A setting's name: the label of its widget if a node of the training has it. @param {Training | null | undefined} training @param {string} name */
function titleIn(training, name) {
  const widgets = (training?.nodes ?? []).flatMap((node) => node.widgets ?? []);
  return widgets.find((widget) => widget.name === name)?.label || name;
}
