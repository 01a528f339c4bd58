// @ts-check
/** Groups of the settings of Wan Train Settings, and which settings its node shows. Pure. */

import { t } from "../page/words.mjs";

/**
 * @typedef {{ name: string, value: unknown, usual: unknown, text: string, linked: boolean, group: string, first: boolean }} Setting
 *   `usual`: the default; `text`: searched text; `linked`: whether the value comes from another node; `first`: always shown
 * @typedef {{ open: Set<string>, query: string }} View
 */

/** Number of first settings that are always shown. */
export const FIRST = 6;

/** Other nodes that a search looks in, the most likely one first. */
const OTHERS = [
  "TrainLoRA",
  "LoadWanModel",
  "WanPreviewSettings",
  "WanDatasetSettings",
  "WanVideoDataset",
];

/** The groups in order; `wan_group` in a widget's options is its group. */
export const GROUPS = [
  "batch",
  "optimizer",
  "schedule",
  "objective",
  "memory",
  "pair",
  "evaluation",
  "more",
];

/** @param {unknown} group from the server @returns {string} one of GROUPS; the last one without a group */
export function knownGroup(group) {
  return GROUPS.find((one) => one === group) ?? "more";
}

/** @param {string} group @returns {string} label of its button */
export function groupTitle(group) {
  switch (group) {
    case "batch":
      return t("Batches");
    case "optimizer":
      return t("Optimizer");
    case "schedule":
      return t("Learning rate");
    case "objective":
      return t("Noise and loss");
    case "memory":
      return t("Memory");
    case "pair":
      return t("Both experts");
    case "evaluation":
      return t("Evaluation, saves");
    default:
      return t("LoRA and more");
  }
}

/**
 * Finds another node with a widget whose name starts with the search text.
 * @param {string} query the search text
 * @param {(kind: string) => string[]} widgetsOf names of the widgets of a kind of node
 * @returns {{ name: string, kind: string } | null}
 */
export function elsewhere(query, widgetsOf) {
  const word = query.trim().toLowerCase().replace(/\s+/g, "_");
  if (word.length < 2) return null;
  for (const kind of OTHERS) {
    const name = widgetsOf(kind).find((one) => one.startsWith(word));
    if (name) return { name, kind };
  }
  return null;
}

/** @param {Setting} setting */
export function isChanged({ value, usual }) {
  return value !== usual;
}

/**
 * Whether the node shows a setting. Changed and linked settings are always shown, except during a search.
 * @param {Setting} setting
 * @param {View} view
 */
export function isShown(setting, { open, query }) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${setting.name} ${setting.text}`.toLowerCase();
  if (words.length) return setting.linked || words.every((word) => text.includes(word));
  return setting.first || setting.linked || isChanged(setting) || open.has(setting.group);
}
