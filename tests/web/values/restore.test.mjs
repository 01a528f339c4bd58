import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { OURS } from "../../../web/js/lib/page/ids.mjs";
import {
  inOrder,
  keepByName,
  namedValues,
  valuesByName,
} from "../../../web/js/lib/values/restore.mjs";

const read = (path) => JSON.parse(readFileSync(new URL(path, new URL("../../", import.meta.url))));
const schemas = read("nodes/schemas.json");
const old = read("fixtures/workflows/before_only_what_fits.json");

/** The widgets of a node as the page makes them today. */
function widgetsOf(kind) {
  const plain = schemas[kind].inputs.filter((input) => "default" in input);
  return plain.map((input) => ({ name: input.name, value: input.default }));
}

const namesOf = (widgets) =>
  widgets.filter(({ serialize }) => serialize !== false).map(({ name }) => name);

test("every node of ours is known by its id, and no other is", () => {
  assert.deepEqual(OURS.toSorted(), Object.keys(schemas).sort());
});

test("a workflow that lacks inputs added since gives every value to its name", () => {
  const lacking = new Set();
  for (const node of old.workflow.nodes.filter(({ type }) => type in schemas)) {
    const today = namesOf(widgetsOf(node.type));
    const inputs = Object.entries(old.prompt[node.id].inputs);
    const told = Object.fromEntries(inputs.filter(([, value]) => !Array.isArray(value)));
    assert.deepEqual(namedValues(node, today), told, node.type);
    for (const name of today) if (!(name in told)) lacking.add(`${node.type}.${name}`);
  }
  assert.ok(lacking.has("AddFrozenLora.only_what_fits") && lacking.size > 10, [...lacking].join());
});

const NOW = ["name", "device", "steps", "note"];
const widgets = () => [
  { name: "name", value: "a" },
  { name: "device", value: "default" },
  { name: "steps", value: 10 },
  { name: "note", value: "say" },
  { name: "panel", value: "", serialize: false },
];
const restored = (saved) => inOrder(namedValues(saved, NOW), widgets());

test("an input that was inserted or appended keeps its default", () => {
  const named = { name: "b", steps: 20 };
  for (const shown of [[], [""], [null], ["", ""]]) {
    const saved = { widgets_values: ["b", 20, ...shown], widgets_values_named: named };
    assert.deepEqual(restored(saved), ["b", "default", 20, "say"], "what only shows left a value");
  }
  assert.deepEqual(Object.keys(valuesByName(widgets())), NOW);
});

test("a menu that was saved with nothing chosen shows what it begins with", () => {
  const named = { name: "b", device: null, steps: 20 };
  for (const widgets_values of [Object.values(named), undefined]) {
    const shown = restored({ widgets_values, widgets_values_named: named });
    assert.deepEqual(shown, ["b", "default", 20, "say"]);
  }
});

test("values whose input is gone are dropped, and those no menu offers are kept for the server to judge", () => {
  const named = { name: "b", scheduler: "old", device: "a card that was sold", steps: 20 };
  assert.deepEqual(
    restored({ widgets_values: Object.values(named), widgets_values_named: named }),
    ["b", "a card that was sold", 20, "say"],
  );
});

test("the order of the names in the file does not matter", () => {
  const named = { steps: 20, name: "b", device: "cpu", note: "hm" };
  assert.deepEqual(
    restored({ widgets_values: ["b", "cpu", 20, "hm"], widgets_values_named: named }),
    ["b", "cpu", 20, "hm"],
  );
});

test("positions that a program changed are believed when they are today's", () => {
  const named = { name: "b", device: "cpu", steps: 20, note: "hm" };
  assert.deepEqual(
    restored({ widgets_values: ["b", "cpu", 30, "hm"], widgets_values_named: named }),
    ["b", "cpu", 30, "hm"],
  );
});

test("positions that a program swapped are believed too, though the values are the same", () => {
  const numbers = ["a", "b", "c"].map((name, at) => ({ name, value: at }));
  const swapped = { widgets_values: [10, 20, 30], widgets_values_named: { a: 10, b: 30, c: 20 } };
  assert.deepEqual(inOrder(namedValues(swapped, ["a", "b", "c"]), numbers), [10, 20, 30]);
  const made = widgetsOf("WanVideoDataset");
  const size = namesOf(made);
  const values = made.map(({ name, value }) => ({ width: 832, height: 480 })[name] ?? value);
  const named = Object.fromEntries(size.map((name, at) => [name, values[at]]));
  const [wide, high] = [size.indexOf("width"), size.indexOf("height")];
  [values[wide], values[high]] = [values[high], values[wide]];
  const found = namedValues({ widgets_values: values, widgets_values_named: named }, size);
  assert.deepEqual([found.width, found.height], [480, 832]);
});

test("names of a version with an input that is gone are believed, also when a program has sorted them", () => {
  const named = { device: "cpu", name: "b", scheduler: "old", steps: 20 };
  const saved = { widgets_values: ["b", "old", "cpu", 20], widgets_values_named: named };
  assert.deepEqual(restored(saved), ["b", "cpu", 20, "say"]);
});

test("values that have no name are those of their positions", () => {
  const values = ["b", "cpu", 30, "hm"];
  for (const named of [{ name: "b" }, { steps: 30, device: "cpu" }, { steps: 20 }]) {
    const saved = { widgets_values: values, widgets_values_named: named };
    assert.deepEqual(restored(saved), values, JSON.stringify(named));
  }
  const unlike = { widgets_values: ["b", 20], widgets_values_named: { name: "c" } };
  assert.deepEqual(restored(unlike), ["c", "default", 10, "say"]);
});

test("values without names are left to the page", () => {
  assert.equal(namedValues({ widgets_values: ["b", "cpu", 30, "hm"] }, NOW), null);
  assert.equal(namedValues({ widgets_values: [1, "b"], widgets_values_named: {} }, NOW), null);
  assert.equal(namedValues({}, NOW), null);
});

/** A node class as the page makes it, which knows positions only. */
function nodeClass() {
  return class {
    widgets = widgetsOf("SplitAcrossGPUs").concat({ name: "panel", value: "", serialize: false });
    configure(saved) {
      for (const [at, value] of saved.widgets_values.entries()) this.widgets[at].value = value;
    }
    serialize() {
      const saved = { widgets_values: this.widgets.slice(0, -1).map(({ value }) => value) };
      this.onSerialize?.(saved);
      return saved;
    }
  };
}

test("a node of ours saves its values by name and is restored by name", () => {
  const Node = nodeClass();
  keepByName(Node, "SplitAcrossGPUs");
  const node = new Node();
  node.widgets[2].value = "14";
  const saved = node.serialize();
  assert.deepEqual(saved.widgets_values_named, { mode: "auto", devices: "all", split_at: "14" });
  // As a version with the inputs the other way round would have written it.
  saved.widgets_values.reverse();
  saved.widgets_values_named = Object.fromEntries(
    Object.entries(saved.widgets_values_named).reverse(),
  );
  const other = new Node();
  other.configure(saved);
  assert.deepEqual(
    other.widgets.map(({ value }) => value),
    ["auto", "all", "14", ""],
  );
});

test("a widget without a value before the others shifts none of them", () => {
  const Node = nodeClass();
  // As frontends of ComfyUI 0.3.75 write it: a gap where the first widget is.
  Node.prototype.serialize = function () {
    const saved = { widgets_values: [] };
    for (const [at, widget] of this.widgets.entries())
      if (widget.serialize !== false) saved.widgets_values[at] = widget.value;
    this.onSerialize?.(saved);
    return saved;
  };
  keepByName(Node, "SplitAcrossGPUs");
  const node = new Node();
  node.widgets.unshift({ name: "preset", value: "", serialize: false });
  assert.deepEqual(node.serialize().widgets_values, ["auto", "all", "auto"]);
});

test("nodes of others, and what they do when saved, stay as they are", () => {
  const Other = nodeClass();
  keepByName(Other, "KSampler");
  assert.ok(!Object.hasOwn(Other.prototype, "onSerialize"));
  const Node = nodeClass();
  Node.prototype.onSerialize = function (saved) {
    saved.mark = this.widgets.length;
    saved.widgets_values_named = { mode: "as the page wrote it" };
  };
  keepByName(Node, "SplitAcrossGPUs");
  const { mark, widgets_values_named } = new Node().serialize();
  assert.deepEqual([mark, widgets_values_named], [4, { mode: "as the page wrote it" }]);
});
