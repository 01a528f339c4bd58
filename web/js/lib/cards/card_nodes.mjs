// @ts-check
/** The nodes of the canvas that have a card, and where each card's facts come from. */

import { findNode, nodes, placed } from "../page/graph.mjs";
import { kindOf } from "../page/ids.mjs";
import { Follower } from "../page/pacing.mjs";
import { captionsPath, clipPath } from "../page/routes.mjs";
import {
  addWidget,
  hideOutputs,
  MARGINS,
  room,
  watchWidgets,
  zoomThrough,
} from "../page/widget.mjs";
import { t } from "../page/words.mjs";
import { changedSince, factsIn, factsInHistory, fits, nameOf } from "./card_facts.mjs";
import { ClipsCard } from "./clips_card.mjs";
import { DatasetCard } from "./dataset_card.mjs";
import { DensityCard } from "./density_card.mjs";
import { takeDrops } from "./drops.mjs";
import { PlanCard } from "./plan_card.mjs";
import { setMissingCaptions, setTriggerWord } from "./remedies.mjs";
import { SplitCard } from "./split_card.mjs";
import { Kept } from "./tab_memory.mjs";
import { LOADER, TRAINER, trainersOf } from "./trainers.mjs";

/**
 * @typedef {import("../page/graph.mjs").Graph} Graph
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("./card_facts.mjs").Facts} Facts
 */

const SHEET = "wan_dataset";
const CLIPS = "wan_clips";
const FOLDER_NODE = "WanVideoDataset";
/** Class of node -> key of the facts in its output. @type {Record<string, string>} */
const KEYS = {
  SplitAcrossGPUs: "wan_split",
  PlanMemory: "wan_plan",
  [FOLDER_NODE]: SHEET,
  WanDatasetFromFile: SHEET,
  WanSaveCaptions: SHEET,
  ValidateVideo: CLIPS,
  [LOADER]: "wan_model",
};
const SETTINGS = "WanTrainSettings";
/** The number of history entries to request. */
const HISTORY = "/history?max_items=8";

export class CardNodes {
  /**
   * @param {{ app: any, api: any, routes: import("../page/routes.mjs").Routes, frames: import("../page/pacing.mjs").Frames, root: () => Graph,
   *   storage: Pick<Storage, "getItem" | "setItem">, create: (kind: string) => GraphNode | null }} page
   */
  constructor({ app, api, routes, frames, root, storage, create }) {
    this.app = app;
    this.api = api;
    this.routes = routes;
    this.frames = frames;
    this.root = root;
    this.kept = new Kept(storage);
    this.create = create;
    this.follower = new Follower(() => this.readHistory(), { failed: () => {} });
    this.redraw = this.redraw.bind(this);
  }

  /** @param {GraphNode} node a new one */
  add(node) {
    const kind = kindOf(node);
    const card = this.cardFor(node, kind);
    if (card) {
      const widget = addWidget(node, card.element, { least: () => card.least + MARGINS });
      if (KEYS[kind] === SHEET) widget.label = t("Clips"); // title of the card in an app
      card.element.addEventListener("wheel", (event) => this.wheel(event));
      node.wanTrainerCard = card;
      if (KEYS[kind] === CLIPS) hideOutputs(node);
    }
    if (card || [TRAINER, LOADER].includes(kind)) this.follow(node);
  }

  /** Redraws the card when the user changes a widget or a link. @param {GraphNode} node */
  follow(node) {
    const changed = () => this.frames.ask(this.redraw);
    watchWidgets(node, () => true, changed);
    const before = node.onConnectionsChange;
    node.onConnectionsChange = function (/** @type {unknown[]} */ ...values) {
      changed();
      return before?.apply(this, values);
    };
  }

  /** @param {GraphNode} node @param {string} kind */
  cardFor(node, kind) {
    const grew = room(node);
    if (kind === SETTINGS) {
      const facts = () => ({
        widgets: node.widgets ?? [],
        trainers: trainersOf(this.root(), node),
      });
      return new DensityCard(this.frames, grew, facts);
    }
    if (KEYS[kind] === "wan_split") return new SplitCard(this.frames, grew);
    if (KEYS[kind] === "wan_plan") return new PlanCard(this.frames, grew);
    const address = (/** @type {unknown} */ file) => this.address(file);
    if (KEYS[kind] === CLIPS) return new ClipsCard(this.frames, grew, address);
    if (KEYS[kind] !== SHEET) return null;
    const remedies = {
      missing: (/** @type {string} */ value) => setMissingCaptions(node, value, this.create),
      trigger: (/** @type {string} */ word) => setTriggerWord(node, word),
    };
    const drops = kind === FOLDER_NODE;
    const card = new DatasetCard(this.frames, grew, address, remedies, this.captions(), drops);
    if (drops) takeDrops(node, card, this);
    return card;
  }

  /** @returns {import("./caption_edits.mjs").Doors} */
  captions() {
    const { routes, api } = this;
    return {
      caption: async (scan, clip) => (await routes.get(captionsPath(scan, { clip }))).caption,
      find: (scan, text, group) => routes.get(captionsPath(scan, { text, group })),
      write: (scan, clip, before, text) => routes.caption(scan, { clip, before, text }),
      replace: (scan, find, by, { can_change: captions, places }) =>
        routes.replace(scan, { find, by, captions, places }),
      choose: (scan, clip, before, choice) => routes.choose(scan, { clip, before, choice }),
      undo: (scan, change) => routes.undo(scan, change),
      measure: (scan) => routes.measure(scan),
      address: (scan, clip) => api.apiURL(clipPath(scan, clip)),
      frame: (scan, clip) => api.apiURL(`${clipPath(scan, clip)}/frame`),
    };
  }

  /** The card scrolls where it can, and the canvas zooms elsewhere. @param {WheelEvent} event */
  wheel(event) {
    const inside = /** @type {Element} */ (event.target).closest?.("[data-scrolls]");
    if (inside && inside.scrollHeight > inside.clientHeight) event.stopPropagation();
    else zoomThrough(this.app.canvas, event);
  }

  /**
   * Address of an output's file.
   * @param {any} file as the server names it
   */
  address(file) {
    if (typeof file?.filename !== "string") return "";
    const { filename, subfolder = "", type = "temp" } = file;
    const query = new URLSearchParams({ filename, subfolder, type });
    return this.api.apiURL(`/view?${query}`);
  }

  /** Handles "executed": a node has ended, or ComfyUI used its cached output. @param {any} detail */
  onExecuted(detail) {
    const node = this.find(detail);
    const facts = node && factsIn(detail.output, KEYS[kindOf(node)]);
    if (!node || !facts) return;
    const id = String(detail.display_node ?? detail.node);
    if (this.tell(node, facts)) this.kept.put(nameOfPlace(this.place(id, node)), facts);
  }

  /** @param {string} id @param {string} reason @returns {boolean} whether its card says why it failed */
  onBroken(id, reason) {
    const node = findNode(this.root(), id);
    if (!node?.wanTrainerCard || node.wanTrainerStatus) return false;
    node.wanTrainerCard.fail(reason);
    node.wanTrainerFacts = undefined;
    this.kept.drop(nameOfPlace(this.place(id, node)));
    this.frames.ask(this.redraw);
    return true;
  }

  /** Clears earlier failures, when a queue entry starts. */
  begun() {
    for (const node of nodes(this.root())) node.wanTrainerCard?.fail("");
  }

  /** Shows a new clip of a rendering. @param {import("../run/status.mjs").Status} status */
  onStatus({ node: id, about }) {
    const node = about?.kind === "clips" ? findNode(this.root(), id) : null;
    if (node) this.tell(node, /** @type {Facts} */ (about?.clips));
  }

  /** @param {any} detail */
  find(detail) {
    return findNode(this.root(), detail.display_node ?? detail.node);
  }

  /**
   * Shows facts in a node. An error is logged to the console and does not affect other nodes.
   * @param {GraphNode} node
   * @param {Facts} facts
   * @returns {boolean} whether it worked
   */
  tell(node, facts) {
    try {
      node.wanTrainerCard?.show(facts);
    } catch (error) {
      console.warn(`[WanTrainer] Facts not shown: ${node.comfyClass}`, error);
      return false;
    }
    node.wanTrainerFacts = facts;
    this.frames.ask(this.redraw);
    return true;
  }

  /** Shows the facts of the last run, after a workflow was loaded. @param {GraphNode} node */
  loaded(node) {
    if (!node.wanTrainerCard && kindOf(node) !== LOADER) return;
    this.frames.ask(this.redraw);
    this.follower.ask();
  }

  async readHistory() {
    const waiting = [...placed(this.root())].filter(
      ({ node }) => KEYS[kindOf(node)] && !node.wanTrainerFacts,
    );
    const wanted = waiting.filter(({ id, node }) => {
      const place = this.place(id, node);
      const facts = this.kept.get(nameOfPlace(place));
      const found = facts && (place.workflow || fits(facts, place));
      return !(found && this.tell(node, facts));
    });
    if (!wanted.length) return;
    const answer = await this.api.fetchApi(HISTORY, { cache: "no-store" });
    const history = await answer.json();
    for (const { id, node } of wanted) {
      const facts = factsInHistory(history, this.place(id, node));
      if (facts && !node.wanTrainerFacts) this.tell(node, facts);
    }
  }

  /** @param {string} id @param {GraphNode} node @returns {import("./card_facts.mjs").Place} */
  place(id, node) {
    const kind = kindOf(node);
    const workflow = nameOf(this.root().id);
    return { workflow, id, kind, key: KEYS[kind], widgets: node.widgets ?? [] };
  }

  /** Redraws all cards after a change of colours, widgets or links. */
  redraw() {
    for (const node of nodes(this.root())) {
      const card = node.wanTrainerCard;
      if (!card) continue;
      card.tellChanged(changedSince(node.wanTrainerFacts?.asked, node.widgets ?? []));
      card.draw();
    }
  }
}

/** @param {import("./card_facts.mjs").Place} place */
function nameOfPlace({ workflow, id, kind }) {
  return JSON.stringify([workflow, id, kind]);
}
