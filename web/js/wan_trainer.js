// @ts-check
/**
 * The extension that ComfyUI's page loads. It adds a status line to long-running nodes, a panel to Train Wan LoRA, cards to
 * other nodes and the tab "Training runs", saves widget values by name, and refreshes loader lists after each save.
 * The modules in lib/ draw all of it.
 */

// @ts-expect-error served by ComfyUI
import { api } from "../../../scripts/api.js";
// @ts-expect-error served by ComfyUI
import { app } from "../../../scripts/app.js";
import { CardNodes } from "./lib/cards/card_nodes.mjs";
import { loadNotes, translateNote } from "./lib/files/read_me.mjs";
import { SettingsFiles, SUFFIXES } from "./lib/files/settings_files.mjs";
import { FitNodes } from "./lib/fit/fit_nodes.mjs";
import { namePanel } from "./lib/page/app_mode.mjs";
import { element } from "./lib/page/dom.mjs";
import { findNode, nodes, recordHeights } from "./lib/page/graph.mjs";
import {
  idHere,
  isOurs,
  kindOf,
  learnIds,
  renameClasses,
  renameNodes,
  sayWhoTookIds,
  shortId,
} from "./lib/page/ids.mjs";
import { keepNodeWords, nameTextBoxes } from "./lib/page/node_words.mjs";
import { Frames } from "./lib/page/pacing.mjs";
import { Routes } from "./lib/page/routes.mjs";
import { learnSentences, told } from "./lib/page/server_sentences.mjs";
import {
  CHART_THEME,
  chooseFolder,
  settings,
  showChartTheme,
  watchTheme,
} from "./lib/page/settings.mjs";
import { StatusLines } from "./lib/page/status_lines.mjs";
import { translateTitle } from "./lib/page/titles.mjs";
import { loadWords, t } from "./lib/page/words.mjs";
import { TrainerNodes } from "./lib/panel/trainer_nodes.mjs";
import { lineOf } from "./lib/run/line.mjs";
import { watchQueue } from "./lib/run/queue_refusals.mjs";
import { outputText, SaveWatch } from "./lib/run/status.mjs";
import { MoreInputs } from "./lib/settings/more_inputs.mjs";
import { SettingNodes } from "./lib/settings/setting_nodes.mjs";
import { RunsTab } from "./lib/tab/runs_tab.mjs";
import { keepByName } from "./lib/values/restore.mjs";

const NAME = "WanTrainer";
const STATUS_EVENT = "wan_trainer.status";
const SENTENCES_EVENT = "wan_trainer.sentences";
const TRAINER = "TrainLoRA";
const LINE_NODES = ["CacheLatents", "ValidateVideo"];
/** Milliseconds between two reads of running runs, in case no message comes. */
const PULSE = 5000;
/**
 * @typedef {import("./lib/run/status.mjs").Status} Status
 * @typedef {import("./lib/page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("./lib/page/graph.mjs").Graph} Graph
 */

const saves = new SaveWatch();
const frames = new Frames(requestAnimationFrame.bind(window));
const lines = new StatusLines(frames);
const routes = new Routes((path, options) => api.fetchApi(path, options));
const trainers = new TrainerNodes({ app, api, routes, frames, root });
/** Creates a node outside any graph. @type {(kind: string) => any} */
const create = (kind) => /** @type {any} */ (window).LiteGraph?.createNode(idHere(kind)) ?? null;
const cards = new CardNodes({ app, api, routes, frames, root, storage: sessionStorage, create });
const settingNodes = new SettingNodes(frames);
const moreInputs = new MoreInputs(
  frames,
  () => setting("Comfy.Node.AlwaysShowAdvancedWidgets") === true,
);
const fits = new FitNodes({ routes, frames, root, create });

/** Nodes that ComfyUI refused at the last queueing, with reasons. @type {import("./lib/run/queue_refusals.mjs").Reasons} */
let refused = {};

/** Created after the translations are loaded, because it writes its texts only once. @type {RunsTab} */
let tab;

function newTab() {
  return new RunsTab(routes, frames, {
    load: async (graph, name) => {
      if (Array.isArray(graph.nodes)) await app.loadGraphData(graph, true, true, name);
      else await app.loadApiJson(graph, name);
    },
    queue: () => app.queuePrompt(0, 1),
    copy: (text) => navigator.clipboard.writeText(text),
    address: (path) => api.apiURL(path),
    seen: (runs) => trainers.onRuns(runs),
    save: (name, parts) => {
      const href = URL.createObjectURL(new Blob(parts, { type: "text/csv" }));
      element("a", { href, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(href), PULSE);
    },
  });
}

/** Opens settings files of other trainers like workflows: dropped on the page, or chosen with Open. */
const files = new SettingsFiles({
  read: (texts) => routes.settingsFiles(texts),
  open: (graph, name) => app.loadGraphData(graph, true, true, name),
  say: (severity, detail) =>
    // The toast covers Run, so it closes by itself; the note next to the nodes has the same text.
    app.extensionManager?.toast?.add({
      severity,
      summary: NAME,
      detail,
      life: severity === "success" ? 5000 : 20000,
    }),
});

function openSettings() {
  const open = document.getElementById("comfy-file-input");
  if (open instanceof HTMLInputElement) open.accept += `,${SUFFIXES}`;
  const seen = (/** @type {DragEvent} */ event) => files.fell(event.dataTransfer?.files ?? []);
  document.addEventListener("drop", seen, { capture: true });
  const handle = app.handleFile;
  app.handleFile = async function (/** @type {File} */ file, /** @type {unknown[]} */ ...rest) {
    if (!(await files.takes(file))) return handle.call(this, file, ...rest);
  };
}

/** Sorts our templates by their numbers in the template browser; the server lists them unsorted. */
function sortTemplates() {
  const read = api.getWorkflowTemplates;
  if (!read) return;
  api.getWorkflowTemplates = async function () {
    const found = await read.call(this);
    const pack = decodeURIComponent(import.meta.url.split("/").at(-3) ?? "");
    found?.[pack]?.sort();
    return found;
  };
}

/** @returns {Graph} */
function root() {
  return app.rootGraph ?? app.graph;
}

/**
 * Removes the clips of our nodes, which play in panel or card, from a message before the page draws it.
 * @param {any} detail
 */
function dropClips({ output, display_node, node: id }) {
  const node = findNode(root(), display_node ?? id);
  if (!(output?.wan_run && node?.wanTrainerPanel) && !(output?.wan_clips && node?.wanTrainerCard))
    return;
  delete output.images;
  delete output.animated;
}

/** Shows a text in the status line of a node. @param {string} id @param {string} text */
function show(id, text) {
  const node = findNode(root(), id);
  if (node?.wanTrainerPanel) node.wanTrainerPanel.write(text);
  else if (node?.wanTrainerStatus) lines.write(node.wanTrainerStatus, text);
}

/** @param {Status} status */
function onStatus(status) {
  learnSentences(status.sentences);
  trainers.onStatus(status);
  if (!status.run && trainers.isHere(status)) {
    show(status.node, lineOf(status));
    cards.onStatus(status);
  }
  // Without a toast if the page supports it: a run saves often.
  if (saves.isNew(status)) (app.reloadNodeDefs ?? app.refreshComboInNodes)?.call(app);
  if (status.run) tab.onStatus();
}

/** Handles "executed": a node has ended, or ComfyUI used its cached output. @param {any} detail */
function onExecuted(detail) {
  dropClips(detail);
  learnSentences(detail.output?.wan_run?.at(-1)?.sentences);
  if (!trainers.isHere(detail)) return;
  const id = detail.display_node ?? detail.node;
  const run = detail.output?.wan_run?.at(-1)?.run;
  if (typeof run === "string") trainers.panelOf(id)?.bind(run);
  const text = outputText(detail.output);
  if (text) show(id, text);
  cards.onExecuted(detail);
}

/** @param {string} id @returns {unknown} */
function setting(id) {
  return app.extensionManager?.setting?.get(id);
}

/** Handles "execution_error". @param {any} detail */
function onError(detail) {
  const isHere = trainers.isHere(detail);
  trainers.rest(isHere ? findNode(root(), detail.node_id)?.title : "");
  if (!isHere) return;
  sayWhy(detail.node_id, String(detail.exception_message).trim());
}

/** Shows in one of our nodes why it failed. @param {string} id @param {string} reason */
function sayWhy(id, reason) {
  const node = findNode(root(), id);
  if (!node || !isOurs(node)) return;
  const panel = trainers.panelOf(id);
  if (panel) panel.onBroken(reason);
  else if (!cards.onBroken(id, told(reason)))
    lines.fail(node, t("failed: {reason}", { reason: told(reason) }));
  fits.broken(node, reason);
}

/** Shows the queue's refusals in their nodes, except in a Train Wan LoRA whose run is live. */
function sayRefusals() {
  for (const [id, reason] of Object.entries(refused)) {
    if (!trainers.panelOf(id)?.live) sayWhy(id, reason);
  }
}

/** Records the nodes' growth since the last step of undo, so that the next step does not contain it. */
function heightsAreNoSteps() {
  const { activeState } = app.extensionManager?.workflow?.activeWorkflow?.changeTracker ?? {};
  recordHeights(activeState, [...nodes(root())].filter(isOurs));
}

/** ComfyUI calls no extension hook for graphs in API format. */
function renameOnLoad() {
  const load = app.loadApiJson;
  app.loadApiJson = function (/** @type {any} */ graph, /** @type {unknown[]} */ ...rest) {
    renameClasses(graph);
    return load.call(this, graph, ...rest);
  };
}

const extension = {
  name: NAME,
  settings: settings(showChartTheme),

  /** Loads translations before the page registers nodes. */
  async init() {
    sortTemplates();
    const place = /** @type {any} */ (document.getElementById("vue-app"));
    await keepNodeWords(place?.__vue_app__, (path) => api.fetchApi(path));
  },

  async setup() {
    renameOnLoad();
    openSettings();
    for (const begin of ["pointerdown", "keydown"])
      window.addEventListener(begin, heightsAreNoSteps, { capture: true });
    showChartTheme(setting(CHART_THEME));
    const locale = String(setting("Comfy.Locale") ?? "en");
    await Promise.all([
      loadWords((path) => api.fetchApi(path), locale),
      loadNotes((address) => fetch(address), locale),
    ]);
    tab = newTab();
    sayWhoTookIds(NAME, app.extensionManager?.toast);
    for (const sheet of [
      "./wan_trainer.css",
      "./wan_cards.css",
      "./wan_sheet.css",
      "./wan_runs.css",
      "./wan_grid.css",
    ]) {
      const href = new URL(sheet, import.meta.url).href;
      document.head.append(element("link", { rel: "stylesheet", href }));
    }
    api.addEventListener(STATUS_EVENT, (/** @type {{ detail: Status }} */ event) =>
      onStatus(event.detail),
    );
    api.addEventListener("executed", (/** @type {CustomEvent} */ event) => dropClips(event), {
      capture: true,
    });
    api.addEventListener("executed", (/** @type {{ detail: any }} */ event) =>
      onExecuted(event.detail),
    );
    api.addEventListener("execution_start", (/** @type {{ detail: any }} */ { detail }) => {
      trainers.prompts.started(detail?.prompt_id);
      for (const one of [lines, cards, fits]) one.begun();
      trainers.waits(true);
      sayRefusals(); // the other nodes of that graph run
    });
    api.addEventListener(SENTENCES_EVENT, (/** @type {{ detail: any }} */ { detail }) => {
      learnSentences(detail.sentences);
      sayRefusals(); // the queue's response may have come before this event
    });
    watchQueue(api, (reasons) => {
      refused = reasons;
      sayRefusals();
    });
    api.addEventListener("execution_success", () => trainers.waits(false));
    api.addEventListener("execution_error", (/** @type {{ detail: any }} */ event) =>
      onError(event.detail),
    );
    setInterval(() => {
      trainers.pulse();
      fits.look();
    }, PULSE);
    for (const event of ["execution_interrupted", "reconnected"]) {
      api.addEventListener(event, () => {
        if (event !== "reconnected") trainers.rest();
        trainers.refresh();
        tab.refresh();
      });
    }
    watchTheme(() => {
      trainers.redraw();
      cards.redraw();
      frames.ask(tab.draw);
    });
    app.extensionManager?.registerSidebarTab?.({
      id: "wan-trainer-runs",
      icon: "pi pi-chart-line",
      title: t("Training runs"),
      tooltip: t("Training runs"),
      type: "custom",
      render: (/** @type {HTMLElement} */ place) => tab.mount(place),
      destroy: () => tab.unmount(),
    });
  },

  /** @param {Record<string, any>} definitions of all nodes, before any of them is registered */
  addCustomNodeDefs(definitions) {
    learnIds(definitions);
  },

  /** @param {any} workflow */
  beforeConfigureGraph(workflow) {
    renameNodes(workflow);
  },

  /** @param {{ prototype: any }} nodeType @param {{ name: string }} nodeData */
  beforeRegisterNodeDef(nodeType, nodeData) {
    keepByName(nodeType, shortId(nodeData.name));
  },

  /** @param {GraphNode} node */
  nodeCreated(node) {
    const kind = kindOf(node);
    chooseFolder(node, setting);
    if (isOurs(node)) nameTextBoxes(node);
    moreInputs.add(node); // below the inputs, above other added widgets
    if (LINE_NODES.includes(kind)) lines.add(node);
    if (kind === TRAINER) trainers.add(node);
    settingNodes.add(node);
    cards.add(node);
    fits.add(node);
  },

  /** @param {GraphNode} node */
  loadedGraphNode(node) {
    translateTitle(node);
    translateNote(node);
    if (trainers.loaded(node)) tab.refresh();
    if (node.wanTrainerPanel || node.wanTrainerCard) namePanel(root()?.extra, node);
    cards.loaded(node);
    settingNodes.loaded(node);
    moreInputs.loaded(node);
    fits.turned();
  },

  /** Called after the page has refreshed its lists of files. */
  refreshComboInNodes() {
    fits.again();
  },
};

if (app.extensions?.some((/** @type {{ name: string }} */ other) => other.name === NAME)) {
  const where = new URL("..", import.meta.url).pathname;
  console.warn(
    `[WanTrainer] This pack is installed twice. What ${where} has is not used; remove one.`,
  );
} else app.registerExtension(extension);
