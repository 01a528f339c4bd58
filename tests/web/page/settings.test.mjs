import assert from "node:assert/strict";
import { test } from "node:test";

import {
  CHART_THEME,
  chartTheme,
  chooseFolder,
  DATASET_FOLDER,
  RUN_FOLDER,
  settings,
} from "../../../web/js/lib/page/settings.mjs";

const node = (comfyClass, name, value, values) => ({
  comfyClass,
  widgets: [
    { name: "other", value: "kept" },
    { name, value, options: values ? { values } : {} },
  ],
});

const set = (values) => (id) => values[id];

test("a new dataset opens the folder people set, if its menu has it", () => {
  const made = node("WanVideoDataset", "folder", "a", ["a", "my clips"]);
  chooseFolder(made, set({ [DATASET_FOLDER]: " my clips " }));
  assert.equal(made.widgets[1].value, "my clips");
  assert.equal(made.widgets[0].value, "kept");
  chooseFolder(made, set({ [DATASET_FOLDER]: "gone" }));
  assert.equal(made.widgets[1].value, "my clips");
});

test("a new trainer takes the run's name people set", () => {
  const made = node("TrainLoRA", "run_name", "my_lora");
  chooseFolder(made, set({ [RUN_FOLDER]: "anna" }));
  assert.equal(made.widgets[1].value, "anna");
});

test("nothing set, or another node: nothing changes", () => {
  for (const read of [set({}), set({ [DATASET_FOLDER]: "  " }), set({ [DATASET_FOLDER]: null })]) {
    const made = node("WanVideoDataset", "folder", "a", ["a", "b"]);
    chooseFolder(made, read);
    assert.equal(made.widgets[1].value, "a");
  }
  for (const kind of ["LoadImage", "constructor", undefined]) {
    const made = node(kind, "folder", "a", ["a", "b"]);
    chooseFolder(made, () => "b");
    assert.equal(made.widgets[1].value, "a");
  }
  chooseFolder({ comfyClass: "TrainLoRA" }, () => "x");
});

test("the page's own theme is no theme of ours, nor is anything unknown", () => {
  assert.deepEqual(["dark", "light", "page", "sepia", undefined].map(chartTheme), [
    "dark",
    "light",
    null,
    null,
    null,
  ]);
});

test("ids are unique, defaults are choices, and the theme tells when it changes", () => {
  const told = [];
  const all = settings((theme) => told.push(theme));
  assert.equal(new Set(all.map((one) => one.id)).size, all.length);
  for (const { options, defaultValue } of all) {
    assert.ok(!options || options.some((option) => option.value === defaultValue));
  }
  all.find((one) => one.id === CHART_THEME).onChange("dark");
  assert.deepEqual(told, ["dark"]);
});
