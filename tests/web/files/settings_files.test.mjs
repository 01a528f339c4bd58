import assert from "node:assert/strict";
import { test } from "node:test";

import {
  mayBeSettings,
  noteInWords,
  SettingsFiles,
} from "../../../web/js/lib/files/settings_files.mjs";
import { learnSentences } from "../../../web/js/lib/page/server_sentences.mjs";
import { learn } from "../../../web/js/lib/page/words.mjs";

const file = (name, text) => ({
  name,
  size: text.length,
  lastModified: 1,
  text: async () => text,
});
const WORKFLOW = JSON.stringify({ nodes: [{ type: "X", model_family: "wan" }], links: [] });
const API = JSON.stringify({
  1: { class_type: "X", inputs: { a: "pretrained_model_name_or_path" } },
});

/** Doors that remember what went through them; `answers` by the first file's name. */
function made(answer = {}) {
  const asked = [];
  const opened = [];
  const said = [];
  const files = new SettingsFiles({
    read: async (texts) => {
      asked.push(Object.keys(texts));
      if (answer instanceof Error) throw answer;
      return {
        known: true,
        trainer: "T",
        source: "a.b.toml",
        graph: { nodes: [] },
        note: [],
        counts: [0, 0, 0, 0],
        missing: [],
        ...answer,
      };
    },
    open: async (_graph, name) => opened.push(name),
    say: (severity, text) => said.push([severity, text]),
  });
  return { files, asked, opened, said };
}

test("a workflow, a graph of the queue API, a picture and a note stay ComfyUI's, and nobody is asked", async () => {
  const { files, asked } = made();
  const others = [
    file("w.json", WORKFLOW),
    file("api.json", API),
    file("broken.json", '{"model_family": '),
    file("list.json", "[1]"),
    file("note.txt", "hello"),
    file("picture.png", "model_family"),
    { ...file("large.toml", ""), size: 1 << 20 },
  ];
  for (const one of others) {
    files.fell([one]);
    assert.equal(await files.takes(one), false, one.name);
  }
  assert.deepEqual(asked, []);
});

test("a script that speaks of the trainer and does not start it is told so; a document of nobody is ComfyUI's", async () => {
  for (const [name, tells] of [
    ["a.sh", true],
    ["a.PY", true],
    ["a.toml", false],
  ]) {
    const { files, said, opened } = made({ known: false, reason: "holds no command." });
    const one = file(name, "echo wan_train_network.py");
    files.fell([one]);
    assert.equal(await files.takes(one), tells, name);
    assert.deepEqual(said, tells ? [["error", "holds no command."]] : []);
    assert.deepEqual(opened, []);
  }
});

test("each trainer's file may be settings", () => {
  assert.ok(mayBeSettings("a.toml", ""));
  assert.ok(mayBeSettings("a.YAML", ""));
  assert.ok(mayBeSettings("a.json", '{"--model_family": "wan"}'));
  assert.ok(mayBeSettings("a.json", '{"job": "extension", "config": {"process": []}}'));
  assert.ok(mayBeSettings("run.bat", "python src/wan_train_network.py --task t2v-1.3B"));
});

test("what falls together is read together, once, whichever ComfyUI asks for", async () => {
  const fell = [
    file("foxes.toml", "x"),
    file("prompts.txt", "y"),
    file("w.json", WORKFLOW),
    file("cat.png", "z"),
  ];
  for (const first of [0, 1]) {
    const { files, asked, opened } = made();
    files.fell(fell);
    assert.equal(await files.takes(fell[first]), true);
    assert.equal(await files.takes({ ...fell[1 - first] }), true, "one drop opens one graph");
    assert.deepEqual(asked, [["foxes.toml", "prompts.txt"]]);
    assert.deepEqual(opened, ["a.b"]);
    assert.equal(await files.takes(fell[2]), false);
    assert.equal(await files.takes(fell[3]), false);
  }
});

test("the same file opens again when it falls again, and alone when it was chosen with Open", async () => {
  const { files, asked } = made();
  const one = file("a.toml", "x");
  files.fell([one, file("b.toml", "y")]);
  await files.takes(one);
  files.fell([one]);
  await files.takes(one);
  files.fell([]);
  await files.takes(one);
  assert.deepEqual(asked, [["a.toml", "b.toml"], ["a.toml"], ["a.toml"]]);
});

test("a file of nobody stays ComfyUI's, and a server that does not answer takes nothing", async () => {
  for (const answer of [
    { known: false },
    Object.assign(new Error("no"), { status: 404 }),
    new TypeError("x"),
  ]) {
    const { files, opened, said } = made(answer);
    assert.equal(await files.takes(file("a.toml", "x")), false);
    assert.deepEqual([opened, said], [[], []]);
  }
});

test("what is wrong with known settings is said, and what is missing", async () => {
  const wrong = made(Object.assign(new Error("rank is 'x'"), { status: 409 }));
  assert.equal(await wrong.files.takes(file("a.toml", "x")), true);
  assert.deepEqual(wrong.said, [["error", "rank is 'x'"]]);
  assert.deepEqual(wrong.opened, []);
  const half = made({ missing: ["x/foxes.toml"], counts: [2, 0, 0, 0] });
  await half.files.takes(file("a.toml", "x"));
  assert.equal(half.said[0][0], "warn");
  assert.match(half.said[0][1], /: 2 imported, 0 changed[\s\S]*x\/foxes\.toml/);
});

test("the note is in the language of the page, sentences within sentences too", () => {
  const why = "a scale for each row";
  const head = "fp8 is not set: true, the default of T";
  const change = `${head} -> scheme int8: ${why}`;
  learn({
    "What happened to your settings": "<title>",
    changed: "<changed>",
    "{key} is not set: {value}, the default of {trainer}": "<{trainer} {key} {value}>",
    [why]: "<why>",
  });
  learnSentences({
    "**changed**": { template: "**{title}**", values: { title: "changed" } },
    [`- ${change}`]: { template: "- {sentence}", values: { sentence: change } },
    [change]: {
      template: "{said} -> {made}: {why}",
      values: { said: head, made: "scheme int8", why },
    },
    [head]: {
      template: "{key} is not set: {value}, the default of {trainer}",
      values: { key: "fp8", value: "true", trainer: "T" },
    },
  });
  const graph = { nodes: [{ type: "A", title: "x" }, { type: "MarkdownNote" }] };
  const lines = ["**changed**", "", `- ${change}`, "- a line that nobody knows"];
  const [other, note] = noteInWords({ graph, note: lines }, "<title>").nodes;
  learn({});
  assert.deepEqual(other, { type: "A", title: "x" });
  assert.equal(note.title, "<title>");
  assert.deepEqual(note.widgets_values[0].split("\n"), [
    "**<changed>**",
    "",
    "- <T fp8 true> -> scheme int8: <why>",
    "- a line that nobody knows",
  ]);
});
