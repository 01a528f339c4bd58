// @ts-check
/**
 * What our templates call nodes of core, where one graph has two of a kind, in the page's language. A template notes the
 * English title in the node's properties too: a node somebody named like that himself keeps its name. Pure.
 */

import { t } from "./words.mjs";

/** Property of a node that stands in a template (scripts/make_workflows.py). */
const TITLE = "wan_trainer_title";

/** @param {import("./graph.mjs").GraphNode} node that was loaded */
export function translateTitle(node) {
  const title = node.properties?.[TITLE];
  if (typeof title === "string" && node.title === title) node.title = inWords(title);
}

/** @param {string} title as a template has it; one nobody knows stays as it is */
function inWords(title) {
  switch (title) {
    case "Prompt":
      return t("Prompt");
    case "Negative prompt":
      return t("Negative prompt");
    case "Size and length":
      return t("Size and length");
    case "Load Diffusion Model (high noise)":
      return t("Load Diffusion Model (high noise)");
    case "Load Diffusion Model (low noise)":
      return t("Load Diffusion Model (low noise)");
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
