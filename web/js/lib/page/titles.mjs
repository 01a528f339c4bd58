// @ts-check
/**
 * Translated titles of our templates' notes and core nodes. The English title is a property of the node, so a node that
 * a user named is left alone, and a saved graph follows the language of the next page. Pure.
 */

import { t } from "./words.mjs";

/** Property of a node in a template (scripts/generators/make_workflows.py). */
export const TITLE = "wan_trainer_title";
/** Property with the translated title. */
const SHOWN = "wan_trainer_title_shown";

/** @param {import("./graph.mjs").GraphNode} node a loaded one */
export function translateTitle(node) {
  const { [TITLE]: title, [SHOWN]: before } = node.properties ?? {};
  if (typeof title !== "string" || ![title, before ?? title].includes(node.title)) return;
  node.title = inWords(title);
  mark(node, SHOWN, node.title !== title && node.title);
}

/** Sets a property of a node, or deletes it if the value is empty. @param {import("./graph.mjs").GraphNode} node @param {string} name @param {unknown} value */
export function mark({ properties = {} }, name, value) {
  if (value) properties[name] = value;
  else delete properties[name];
}

/** @param {string} title of a template; an unknown one is returned unchanged */
function inWords(title) {
  switch (title) {
    case "Read me":
      return t("Read me");
    case "Prompt":
      return t("Prompt");
    case "Negative prompt":
      return t("Negative prompt");
    case "Size and length":
      return t("Size and length");
    case "Load Video (poses)":
      return t("Load Video (poses)");
    case "Load Video (face)":
      return t("Load Video (face)");
    case "Load Video (source)":
      return t("Load Video (source)");
    case "Load Diffusion Model (high noise)":
      return t("Load Diffusion Model (high noise)");
    case "Load Diffusion Model (low noise)":
      return t("Load Diffusion Model (low noise)");
    case "Sampling shift":
      return t("Sampling shift");
    case "Sampling shift (high noise)":
      return t("Sampling shift (high noise)");
    case "Sampling shift (low noise)":
      return t("Sampling shift (low noise)");
    case "Sample (high noise)":
      return t("Sample (high noise)");
    case "Sample (low noise)":
      return t("Sample (low noise)");
    default:
      return title;
  }
}
