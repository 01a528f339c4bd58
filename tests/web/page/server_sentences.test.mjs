import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { afterEach, test } from "node:test";

import {
  failureOf,
  inANewRun,
  learnSentences,
  told,
} from "../../../web/js/lib/page/server_sentences.mjs";
import { learn, loadWords } from "../../../web/js/lib/page/words.mjs";
import { stateText } from "../../../web/js/lib/run/facts.mjs";
import * as server from "../filled.mjs";

const { filled } = server;
const ROOT = new URL("../../../", import.meta.url);
const main = (language) =>
  JSON.parse(readFileSync(new URL(`locales/${language}/main.json`, ROOT), "utf8"));
const speak = (language) =>
  loadWords(async () => new Response(JSON.stringify({ [language]: main(language) })), language);

afterEach(() => learn({}));

test("every translated sentence is said in the page's language, with its own values", () => {
  const templates = Object.keys(main("zh").wanTrainerServer);
  assert.ok(templates.length > 150, String(templates.length));
  learn(Object.fromEntries(templates.map((one) => [one, `¡${one}!`])));
  for (const template of templates) {
    const names = [...template.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    const values = Object.fromEntries(names.map((name) => [name, `{${name}} $& 1.5: b`]));
    const text = filled(template, values);
    assert.equal(told(text), `¡${text}!`);
  }
});

test("what stands in a hole is said in the page's language too, a list one by one", async () => {
  await speak("zh");
  const nearest = filled(' Did you mean "{close}"?', { close: "adamw" });
  assert.equal(
    told(filled('{name} "{value}" is unknown.{nearest}', { name: "a", value: "b", nearest })),
    '未知的 a "b"。您是想写 "adamw" 吗？',
  );
  const helps = [
    "close other programs",
    server.inANewRun(filled("a rank below {rank}", { rank: "64" })),
  ];
  assert.match(told(server.failure("The GPU melted.", { helps })), /^The GPU melted\..*64.*。$/);
  assert.doesNotMatch(told(server.failure("The GPU melted.", { helps })), /programs|below|order/);
});

test("a Spanish page says why a run ended in Spanish, also inside of another sentence", async () => {
  await speak("es");
  const reason = "Stop and keep was pressed";
  assert.equal(
    stateText({ state: "stopped", step: 44, steps: 400, reason }),
    "detenido: paso 44 de 400 (Se pulsó «Detener y conservar»)",
  );
  const values = { sample: "step-000008_p0", reason: "Cancel was pressed" };
  assert.equal(
    told(filled("Preview {sample} was not decoded: {reason}", values)),
    "No se decodificó la vista previa step-000008_p0: Se pulsó «Cancelar»",
  );
  assert.equal(told("the loss is not finite"), "la pérdida no es finita");
});

test("a text whose template never came, or has no translation, is shown as it came", async () => {
  await speak("zh");
  for (const text of [
    "",
    " ",
    "{name}",
    "constructor",
    "run_1 starts from the beginning: it has no intact saved step.",
    filled("{a} melted {b}.", { a: "The GPU", b: "Cancel was pressed" }),
  ])
    assert.equal(told(text), text);
});

test("an English page shows the text of the server to the letter", () => {
  const text = filled("New run {run}.", { run: "{run} $1" });
  assert.equal(told(text), "New run {run} $1.");
  assert.equal(told(filled("{what} {closing}", { what: "a。 b", closing: "c" })), "a。 b c");
});

test("sentences inside each other, or in themselves, have an end", () => {
  learn({ "a {b}": "x {b} {b}" });
  learnSentences({ "a a": { template: "a {b}", values: { b: "a a" } } });
  assert.ok(told("a a").length < 1000);
});

test("only the newest sentences are kept", () => {
  learn({ "New run {run}.": "新 {run}" });
  const first = filled("New run {run}.", { run: "first" });
  for (let i = 0; i < 2000; i += 1) filled("New run {run}.", { run: String(i) });
  assert.equal(told(first), first);
  assert.equal(told("New run 1999."), "新 1999");
});

test("a failure comes in the parts it was made of", () => {
  const stands = filled("Saved step {step} is the last good one.", { step: "7" });
  const text = server.failure("It broke.", { stands, again: "Twice.", helps: ["a", "b"] });
  const plain = { good: null, again: "", helps: [], ifAgain: false };
  assert.deepEqual(failureOf(text), {
    ...plain,
    what: "It broke.",
    good: 7,
    again: "Twice.",
    helps: ["a", "b"],
  });
  assert.deepEqual(failureOf("It broke. Saved steps are kept."), {
    ...plain,
    what: "It broke. Saved steps are kept.",
  });
  const refusal = filled("{what} {name} cannot be a file name.", {
    what: "run_name",
    name: "'a/b'",
  });
  assert.equal(failureOf(refusal).what, refusal, "a refusal that only begins with such a hole");
  assert.equal(failureOf(server.failure("x", { helps: ["a"], ifAgain: true })).ifAgain, true);
  assert.equal(inANewRun(server.inANewRun("a lower rank")), "a lower rank");
  assert.equal(inANewRun("close other programs"), "");
});
