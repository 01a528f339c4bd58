import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { learnLabels, withLabels } from "../../../web/js/lib/page/labels.mjs";
import { told } from "../../../web/js/lib/page/server_sentences.mjs";
import { learn } from "../../../web/js/lib/page/words.mjs";
import { filled } from "../filled.mjs";

const read = (path) =>
  JSON.parse(readFileSync(new URL(`../../../${path}`, import.meta.url), "utf8"));

function speak(language) {
  learnLabels(read(`locales/${language}/nodeDefs.json`), language);
  learn(read(`locales/${language}/main.json`).wanTrainerServer);
}

test("a refusal calls a widget as the page does, beside its id", () => {
  speak("zh");
  const remedies = filled(
    'Write {example} with what is seen, set trigger_word, or say in Wan Dataset Settings what missing_captions means: "skip the file" or "empty caption"',
    { example: "no_cap.txt" },
  );
  const values = { missing: "1", files: "5", names: "no_cap.mp4", more: "", remedies };
  const said = told(
    filled("{missing} of {files} files have no caption: {names}{more}. {remedies}.", values),
  );
  assert.match(said, /触发词（trigger_word）/);
  assert.match(said, /（missing_captions）/);
  assert.match(said, /[^（]no_cap\.txt/, "the name of a file stays");
  speak("es");
  const choice = { name: "run_name", value: "a", nearest: "" };
  assert.match(
    told(filled('{name} "{value}" is not a choice.{nearest}', choice)),
    /^Nombre.* \(run_name\)/,
  );
});

test("what is no widget, or has its label already, stays", () => {
  learnLabels({ TrainLoRA: { inputs: { run_name: { name: "训练名称" } } } }, "zh");
  for (const text of [
    "run_name.json",
    "a/run_name",
    '"run_name"',
    "run_name=2",
    "{run_name}",
    "训练名称（run_name）",
    "my_run_name",
    "run_names",
  ])
    assert.equal(withLabels(text), text);
  assert.equal(
    withLabels("run_name 是空的。run_name."),
    "训练名称（run_name） 是空的。训练名称（run_name）.",
  );
});

test("an English page says ids alone, as its widgets do", () => {
  learnLabels(undefined, "en");
  learn({});
  assert.equal(withLabels("set trigger_word"), "set trigger_word");
});
