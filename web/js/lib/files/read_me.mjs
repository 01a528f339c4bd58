// @ts-check
/**
 * The notes of our templates in the page's language, line by line: a line that somebody wrote or changed stays as it is.
 * The lines stand in web/js/notes, a file for each language, by the English ones of scripts/generators/shipped_graphs; an English page
 * asks for none of them. A note is ours if its title has the mark of a template's (titles.mjs). What its lines were in
 * English is noted in it too, so that a saved graph has the note in the next page's language. Pure, but for the request.
 */

import { mark, TITLE } from "../page/titles.mjs";
import { loadList } from "../page/words.mjs";
import { filled, formOf, readForm } from "./forms.mjs";

const NOTE = "MarkdownNote";
/** Property of a note that was translated: its lines by what is shown of them. */
const ENGLISH = "wan_trainer_english";
/** What may stand in a hole: sizes and figures, such as `832x480` or `10.8 (26)`. A sentence of somebody else's is none. */
const FIGURE = /^[\d.x]+(?: \(\d+\))?$/;

/** Bold in notes of today, as Nodes 2.0 draws code in colours that cannot be read. */
const CODE = /`([^`*]+)`/g;

/** @type {{ form: import("./forms.mjs").Form, said: string }[]} */
let known = [];

/**
 * Translations by English line, in place of those known so far.
 * @param {unknown} translations anything but texts is skipped
 */
export function learnNotes(translations) {
  known = Object.entries(translations ?? {})
    .filter(([, said]) => typeof said === "string")
    .map(([english, said]) => ({ form: formOf(english), said }));
}

/** Ask for the lines of the page's language. @param {(address: URL) => Promise<Response>} fetchFile @param {string} locale */
export async function loadNotes(fetchFile, locale) {
  learnNotes(await loadList(fetchFile, "notes", locale));
}

/** A line in the language of the page; one that no template has stays. @param {string} line */
export function lineInWords(line) {
  for (const { form, said } of known) {
    const values = readForm(form, line.replace(CODE, "**$1**"));
    if (values && Object.values(values).every((value) => FIGURE.test(value)))
      return filled(said, values);
  }
  return line;
}

/** @param {import("../page/graph.mjs").GraphNode} node that was loaded */
export function translateNote(node) {
  const [widget] = node.widgets ?? [];
  if (node.type !== NOTE || !node.properties?.[TITLE] || typeof widget?.value !== "string") return;
  const before = new Map(Object.entries(node.properties[ENGLISH] ?? {}));
  /** @type {Record<string, string>} */
  const english = {};
  const lines = widget.value.split("\n").map((shown) => {
    const line = String(before.get(shown) ?? shown);
    const said = lineInWords(line);
    if (said !== line) english[said] = line;
    return said;
  });
  const text = lines.join("\n");
  if (text !== widget.value) widget.value = text;
  mark(node, ENGLISH, Object.keys(english).length > 0 && english);
}
