// @ts-check
/** The note beside a graph that was made of another trainer's settings, in the language of the page. Pure. */

import { t } from "../page/words.mjs";
import { teller } from "../run/server_sentences.mjs";
import { SENTENCES } from "./account_sentences.mjs";

/** Headings of the account, as wan_core/migrate says them. @type {(() => string)[]} */
const TITLES = [
  () => t("taken over"),
  () => t("changed"),
  () => t("no counterpart here"),
  () => t("not known, so not used"),
  () => t("put right"),
  () => t("to do"),
];
/** The same in English, in which the server says them: the page has learned no other language yet. */
export const SAID = TITLES.map((says) => says());

const told = teller(SENTENCES);

/**
 * The graph, its note translated where it has one.
 * @template {{ nodes: any[] }} G
 * @param {G} graph
 * @returns {G}
 */
export function noteInWords(graph) {
  const nodes = graph.nodes.map((node) => {
    if (node.type !== "MarkdownNote") return node;
    const [text] = node.widgets_values;
    return { ...node, title: t("What became of your settings"), widgets_values: [inWords(text)] };
  });
  return { ...graph, nodes };
}

/** @param {string} text */
function inWords(text) {
  return text.split("\n").map(lineInWords).join("\n");
}

/** @param {string} line */
function lineInWords(line) {
  const title = SAID.indexOf(/^\*\*(.+)\*\*$/.exec(line)?.[1] ?? "");
  if (title >= 0) return `**${TITLES[title]()}**`;
  const put = /^Put `(?<name>.+)` and the folders it names into ComfyUI's `input` folder\.$/.exec(
    line,
  );
  if (!put) return line.startsWith("- ") ? `- ${sentence(line.slice(2))}` : line;
  return t("Put `{name}` and the folders it names into ComfyUI's `input` folder.", {
    name: put.groups?.name ?? "",
  });
}

/** A whole sentence, or the part before an arrow. @param {string} text */
function sentence(text) {
  const said = told(text);
  if (said !== text) return said;
  const [head, ...rest] = text.split(" -> ");
  return [told(head), ...rest].join(" -> ");
}
