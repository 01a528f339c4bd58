import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { learn } from "../../../web/js/lib/page/words.mjs";
import { stateText } from "../../../web/js/lib/run/facts.mjs";
import { SENTENCES, told } from "../../../web/js/lib/run/server_sentences.mjs";

const ROOT = new URL("../../../", import.meta.url);

const python = ["nodes", "wan_core"].flatMap((room) =>
  readdirSync(new URL(`${room}/`, ROOT), { recursive: true })
    .filter((name) => name.endsWith(".py"))
    .map((name) => readFileSync(new URL(`${room}/${name}`, ROOT), "utf8")),
);
const all = python.join("\n");
const [, queueDone] = all.match(/^QUEUE_DONE = "(.+)"$/m);

/** Texts of the Python code, put together where they stand on several lines, what is put in as {}. */
const source = all
  .replaceAll("{QUEUE_DONE}", queueDone)
  .replace(/"\s*\n\s*f?"/g, "")
  .replace(/\{[^{}"\n]*\}/g, "{}");

const said = (sentence) => source.includes(sentence.replace(/\{\w+\}/g, "{}"));
const english = SENTENCES.map((says) => says({}));

test("every sentence the page knows is one the server says", () => {
  assert.deepEqual(
    english.filter((sentence) => !said(sentence)),
    [],
  );
  assert.equal(said("Stop and keep was never pressed"), false);
  assert.equal(said("{n} steps of this queue are over"), false);
});

test("a known sentence is said in the page's language, and what it tells stays", () => {
  const words = Object.fromEntries(english.map((sentence) => [sentence, `¡${sentence}!`]));
  learn(words);
  try {
    for (const sentence of english) {
      const filled = sentence.replace(/\{(\w+)\}/g, "a $1 (1.5): b");
      assert.equal(told(filled), `¡${filled}!`);
    }
  } finally {
    learn({});
  }
});

test("in English every sentence stays to the letter", () => {
  for (const sentence of english) {
    const filled = sentence.replace(/\{(\w+)\}/g, "{x} $1.");
    assert.equal(told(filled), filled);
  }
});

test("a Spanish page says why a run ended in Spanish, also inside of another sentence", () => {
  learn(JSON.parse(readFileSync(new URL("locales/es/main.json", ROOT), "utf8")).wanTrainer);
  try {
    assert.equal(
      stateText({
        state: "stopped",
        step: 44,
        steps: 400,
        reason: "Stop and keep was pressed",
      }),
      "detenido: paso 44 de 400 (Se pulsó «Detener y conservar»)",
    );
    assert.equal(
      told("Preview step-000008_p0 was not decoded: Cancel was pressed"),
      "No se decodificó la vista previa step-000008_p0: Se pulsó «Cancelar»",
    );
    assert.equal(told("the loss is not finite"), "la pérdida no es finita");
  } finally {
    learn({});
  }
});

test("what nobody knows is shown as it came, however long or strange", () => {
  for (const text of ["", "The GPU melted.", "{run}", "Cancel was pressed twice", "constructor"]) {
    assert.equal(told(text), text);
  }
  const long = " continues after step ".repeat(1e5);
  assert.equal(told(long), long);
});
