// @ts-check
/**
 * The pack's page in ComfyUI's settings. ComfyUI keeps the values and finds the translations of names, tooltips and
 * options by itself, in `locales/<language>/settings.json`; so these English texts do not go through `t`.
 */

import { kindOf } from "./ids.mjs";

/** @typedef {(id: string) => unknown} Read */

export const CHART_THEME = "WanTrainer.Chart.Theme";
export const DATASET_FOLDER = "WanTrainer.NewNodes.DatasetFolder";
export const RUN_FOLDER = "WanTrainer.NewNodes.RunFolder";

/**
 * The settings in the format of a ComfyUI extension.
 * @param {(theme: unknown) => void} themed called with the theme of charts, at the start and after changes
 */
export function settings(themed) {
  const category = (/** @type {string} */ group, /** @type {string} */ name) => [
    "Wan Trainer",
    group,
    name,
  ];
  return [
    {
      id: CHART_THEME,
      category: category("Charts", "Theme"),
      name: "Theme of charts",
      tooltip: "Colours of the loss charts in nodes and in the tab of training runs.",
      type: "combo",
      options: [
        { text: "Like the page", value: "page" },
        { text: "Dark", value: "dark" },
        { text: "Light", value: "light" },
      ],
      defaultValue: "page",
      onChange: themed,
    },
    {
      id: DATASET_FOLDER,
      category: category("New nodes", "Dataset folder"),
      name: "Folder of a new Wan Video Dataset",
      tooltip:
        "Chosen when the node is added, spelled as its menu spells it. Empty: the first of the menu.",
      type: "text",
      defaultValue: "",
    },
    {
      id: RUN_FOLDER,
      category: category("New nodes", "Run folder"),
      name: "Run name of a new Train Wan LoRA",
      tooltip:
        "Names the run's folder in output/wan_trainer, and its LoRA. Empty: the node's own default.",
      type: "text",
      defaultValue: "",
    },
  ];
}

/** Class of node -> the widget that gets the default. */
const DEFAULTS = Object.freeze({
  WanVideoDataset: { widget: "folder", setting: DATASET_FOLDER },
  TrainLoRA: { widget: "run_name", setting: RUN_FOLDER },
});

/**
 * Sets the default folder in a new node. A value from a workflow or a copied node, loaded later, replaces it. A menu without
 * that folder keeps its value.
 * @param {import("./graph.mjs").GraphNode} node
 * @param {Read} read value of a setting
 */
export function chooseFolder(node, read) {
  const kind = /** @type {keyof typeof DEFAULTS} */ (kindOf(node));
  if (!Object.hasOwn(DEFAULTS, kind)) return;
  const { widget: name, setting } = DEFAULTS[kind];
  const widget = node.widgets?.find((one) => one.name === name);
  const wanted = String(read(setting) ?? "").trim();
  if (widget && wanted && offers(widget, wanted)) widget.value = wanted;
}

/** @param {{ options?: { values?: unknown } }} widget @param {string} value */
function offers({ options }, value) {
  return Array.isArray(options?.values) ? options.values.includes(value) : true;
}

/**
 * The theme of the style sheet; null for the page's theme.
 * @param {unknown} value
 * @returns {"dark" | "light" | null}
 */
export function chartTheme(value) {
  return value === "dark" || value === "light" ? value : null;
}

/** Sets the theme attribute, which the style sheet reads and `watchTheme` observes. @param {unknown} value of the setting */
export function showChartTheme(value) {
  const theme = chartTheme(value);
  if (theme) document.documentElement.dataset.wanChart = theme;
  else delete document.documentElement.dataset.wanChart;
}

/** Calls `changed` when the page's theme changes; charts read their colours at each draw. @param {() => void} changed */
export function watchTheme(changed) {
  const watch = {
    attributes: true,
    attributeFilter: ["class", "style", "data-theme", "data-wan-chart"],
  };
  for (const place of [document.documentElement, document.body]) {
    new MutationObserver(changed).observe(place, watch);
  }
}
