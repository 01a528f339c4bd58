import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { SENTENCES } from "../../../web/js/lib/files/account_sentences.mjs";
import { noteInWords } from "../../../web/js/lib/files/note.mjs";
import { learn } from "../../../web/js/lib/page/words.mjs";

const ROOM = new URL("../../../wan_core/migrate/", import.meta.url);
const python = readdirSync(ROOM)
  .filter((name) => name.endsWith(".py"))
  .map((name) => readFileSync(new URL(name, ROOM), "utf8"))
  .join("\n")
  .replace(/"\s*\n\s*f?"/g, "")
  .replace(/\{[^{}"\n]*\}/g, "{}");
const english = SENTENCES.map((says) => says({}));

test("every sentence is one that the reading of settings says", () => {
  const unsaid = english.filter((one) => !python.includes(one.replace(/\{\w+\}/g, "{}")));
  assert.deepEqual(unsaid, []);
});

test("a note is said in the page's language, with what it tells", () => {
  learn(Object.fromEntries(english.map((one) => [one, `<${one}>`])));
  const lines = english.map((one) => `- ${one.replace(/\{(\w+)\}/g, "a $1 (1.5)")}`);
  lines.push("- lr is not stated: 1, T's own -> learning_rate 1: why", "- rank 4 -> rank 8: why");
  const graph = { nodes: [{ type: "MarkdownNote", widgets_values: [lines.join("\n")] }] };
  const [text] = noteInWords(graph).nodes[0].widgets_values;
  learn({});
  const told = text.split("\n");
  english.forEach((_, i) => {
    assert.equal(told[i], `- <${lines[i].slice(2)}>`);
  });
  assert.deepEqual(told.slice(-2), [
    "- <lr is not stated: 1, T's own> -> learning_rate 1: why",
    "- rank 4 -> rank 8: why",
  ]);
});
