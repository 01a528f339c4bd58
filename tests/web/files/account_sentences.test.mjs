import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { HEADS, SENTENCES } from "../../../web/js/lib/files/account_sentences.mjs";
import { noteInWords } from "../../../web/js/lib/files/note.mjs";
import { REASONS } from "../../../web/js/lib/files/reason_sentences.mjs";
import { learn } from "../../../web/js/lib/page/words.mjs";

/** Whatever the reading of settings can say: tests/wan_core/migrate/test_reasons.py makes it. */
const FIXTURE = new URL("../../fixtures/reasons.json", import.meta.url);
const said = JSON.parse(readFileSync(FIXTURE, "utf8"));

const english = (sentences) => sentences.map((says) => says({}));
const bare = (text) => text.replace(/\{\w+\}/g, "{}");
const plain = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const filled = (text) => text.replace(/\{\w*\}/g, "a: b (4.5)");

/** Lines of a note on a page that knows each sentence as itself in brackets. */
function shown(lines) {
  const known = english([...HEADS, ...SENTENCES, ...REASONS]);
  learn(Object.fromEntries(known.map((one) => [one, `<${one}>`])));
  const text = lines.map((line) => `- ${line}`).join("\n");
  const graph = { nodes: [{ type: "MarkdownNote", widgets_values: [text] }] };
  const [told] = noteInWords(graph).nodes[0].widgets_values;
  learn({});
  return told.split("\n").map((line) => line.slice(2));
}

test("every sentence of the page is one that the reading of settings says, once", () => {
  const pattern = (one, before) =>
    new RegExp(`^${before}${bare(one).split("{}").map(plain).join(".+")}[)]?$`);
  const says = (one, before, all) => all.some((text) => pattern(one, before).test(text));
  const [whole, reasons] = [english(SENTENCES), english(REASONS)];
  assert.deepEqual(
    whole.filter((one) => !says(one, "", said.sentences)),
    [],
  );
  const unsaid = reasons.filter((one) => !said.reasons.includes(bare(one)));
  assert.deepEqual(
    unsaid.filter((one) => !says(one, ".+(: | [(])", said.sentences)),
    [],
  );
  assert.equal(new Set([...whole, ...reasons].map(bare)).size, whole.length + reasons.length);
});

test("every reason is said in the page's language wherever it can stand", () => {
  for (const reason of said.reasons.map(filled)) {
    const places = (why) => [
      `network.key 1 (${why})`,
      `key C: x (y) -> widget a: ${why}`,
      `key is not stated: 1, T's own -> widget a: ${why}`,
    ];
    const expected = places(`<${reason}>`);
    expected[2] = expected[2].replace("key is not stated: 1, T's own", (head) => `<${head}>`);
    assert.deepEqual(shown(places(reason)), expected);
  }
});

test("every whole sentence is said in the page's language, with what it tells", () => {
  const lines = said.sentences.map(filled);
  shown(lines).forEach((told, i) => {
    assert.match(told, /<.+>\)?$/, lines[i]);
    assert.equal(told.replace(/<(.*)>/, "$1"), lines[i]);
  });
  const whole = english(SENTENCES).map(filled);
  assert.deepEqual(
    shown(whole),
    whole.map((line) => `<${line}>`),
  );
});

test("the head of a note says whose settings they were", () => {
  const note = { type: "MarkdownNote", widgets_values: ["## a of b.toml of musubi-tuner\n\n- x"] };
  learn({ "{source} of {trainer}": "{trainer}: {source}" });
  const [told] = noteInWords({ nodes: [note] }).nodes[0].widgets_values;
  learn({});
  assert.equal(told, "## musubi-tuner: a of b.toml\n\n- x");
});

test("a line that nobody knows stays as it came", () => {
  const lines = [
    "rank 4 -> rank 8: why",
    "key text (of a person)",
    "lr 1e-4 -> learning_rate 0.0001",
  ];
  assert.deepEqual(shown(lines), lines);
});
