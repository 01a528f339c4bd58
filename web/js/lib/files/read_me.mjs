// @ts-check
/**
 * Translates the notes of our templates line by line; lines that the user wrote or changed stay unchanged.
 * web/js/notes has a file for each language: English line of scripts/generators/shipped_graphs -> translation. An English
 * page requests none. A note is ours if its title has a template's mark (titles.mjs). The note also stores its English
 * lines, so that a saved graph is translated again on a page in another language. Pure but for the request.
 */

import { mark, TITLE } from "../page/titles.mjs";
import { loadList } from "../page/words.mjs";
import { filled, formOf, readForm } from "./forms.mjs";

const NOTE = "MarkdownNote";
/** Background of the notes that this pack writes (wan_core/canvas.py). */
const GROUND = "#2a2318";
/** Property of a translated note: shown line -> English line. */
const ENGLISH = "wan_trainer_english";
/** Allowed value of a placeholder: sizes and figures, such as `832x480` or `10.8 (26)`, but no sentence. */
const FIGURE = /^[\d.x]+(?: \(\d+\))?$/;

/** Replaces code by bold text: Nodes 2.0 draws code in unreadable colours. */
const CODE = /`([^`*]+)`/g;

/** @type {{ form: import("./forms.mjs").Form, said: string }[]} */
let known = [];

/**
 * Replaces the translations, by English line.
 * @param {unknown} translations values that are no texts are skipped
 */
export function learnNotes(translations) {
  known = Object.entries(translations ?? {})
    .filter(([, said]) => typeof said === "string")
    .map(([english, said]) => ({ form: formOf(english), said }));
}

/** Requests the lines of the page's language. @param {(address: URL) => Promise<Response>} fetchFile @param {string} locale */
export async function loadNotes(fetchFile, locale) {
  learnNotes(await loadList(fetchFile, "notes", locale));
}

/** A translated line; a line of no template is returned unchanged. @param {string} line */
export function lineInWords(line) {
  for (const { form, said } of known) {
    const values = readForm(form, line.replace(CODE, "**$1**"));
    if (values && Object.values(values).every((value) => FIGURE.test(value)))
      return filled(said, values);
  }
  return line;
}

/** Enlarges the text of a note of this pack, and translates that of a template. @param {import("../page/graph.mjs").GraphNode} node a loaded one */
export function translateNote(node) {
  const [widget] = node.widgets ?? [];
  if (node.type !== NOTE || typeof widget?.value !== "string") return;
  if (node.bgcolor === GROUND) widget.element?.classList.add("wan-note");
  if (!node.properties?.[TITLE]) return;
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
