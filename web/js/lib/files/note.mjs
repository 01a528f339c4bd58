// @ts-check
/** The note beside a graph that was made of another trainer's settings, in the language of the page. Pure. */

import { t } from "../page/words.mjs";
import { HEADS, SENTENCES } from "./account_sentences.mjs";
import { formOf, readForm } from "./forms.mjs";
import { REASONS } from "./reason_sentences.mjs";

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
const SAID = TITLES.map((says) => says());

/** What says a text in the language of the page, where it is one of `sentences`. @param {import("./account_sentences.mjs").Says[]} sentences */
function teller(sentences) {
  const known = sentences.map((says) => ({ says, form: formOf(says({})) }));
  return (/** @type {string} */ text) => {
    for (const { says, form } of known) {
      const found = readForm(form, text);
      if (found) return says(found);
    }
    return text;
  };
}

const ARROW = " -> ";
const told = teller(SENTENCES);
const toldHead = teller(HEADS);
const toldReason = teller(REASONS);

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
  const whose = /^## (?<source>.+) of (?<trainer>[\w-]+)$/.exec(line)?.groups;
  if (whose) return `## ${t("{source} of {trainer}", whose)}`;
  const put = /^Put `(?<name>.+)` and the folders it names into ComfyUI's `input` folder\.$/.exec(
    line,
  );
  if (!put) return line.startsWith("- ") ? `- ${sentence(line.slice(2))}` : line;
  return t("Put `{name}` and the folders it names into ComfyUI's `input` folder.", {
    name: put.groups?.name ?? "",
  });
}

/** A whole sentence, or what stands before an arrow, and the reason at the end. @param {string} text */
function sentence(text) {
  const said = told(text);
  if (said !== text) return said;
  const [head, ...rest] = withReason(text).split(ARROW);
  return [toldHead(head), ...rest].join(ARROW);
}

/**
 * The reason of a key stands in brackets, that of a change behind a colon. The value before it may have both.
 * @param {string} text
 */
function withReason(text) {
  const arrow = text.indexOf(ARROW);
  const inBrackets = text.endsWith(")") ? reasonBehind(text.slice(0, -1), " (", 0) : "";
  const behind = reasonBehind(text, ": ", arrow);
  if (behind && (arrow >= 0 || !inBrackets)) return behind;
  return inBrackets ? `${inBrackets})` : text;
}

/** Empty where no reason stands behind the sign. @param {string} text @param {string} sign @param {number} from */
function reasonBehind(text, sign, from) {
  for (let at = text.indexOf(sign, from); at >= 0; at = text.indexOf(sign, at + 1)) {
    const reason = text.slice(at + sign.length);
    const said = toldReason(reason);
    if (said !== reason) return text.slice(0, at + sign.length) + said;
  }
  return "";
}
