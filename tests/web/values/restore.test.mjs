import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { keepByName } from "../../../web/js/lib/values/by_name.mjs";
import { ORDERS } from "../../../web/js/lib/values/orders.mjs";
import { inOrder, namedValues, valuesByName } from "../../../web/js/lib/values/restore.mjs";

const TESTS = new URL("../../", import.meta.url);
const read = (path) => JSON.parse(readFileSync(new URL(path, TESTS), "utf8"));
const schemas = read("nodes/schemas.json");
const old = readdirSync(new URL("fixtures/workflows/", TESTS)).map((name) =>
  read(`fixtures/workflows/${name}`),
);

/** The widgets of a node as the page makes them today. */
function widgetsOf(kind) {
  const plain = schemas[kind].inputs.filter((input) => "default" in input);
  return plain.map((input) => ({ name: input.name, value: input.default }));
}

const ordersOf = (kind) => ORDERS[kind].map((order) => order.split(","));

/** Values by name as the prompt of the time says them; an API graph has no more than these. */
function told(saved, prompt) {
  const inputs = Object.entries(prompt[saved.id].inputs);
  return Object.fromEntries(inputs.filter(([, value]) => !Array.isArray(value)));
}

const ours = (workflow) => workflow.nodes.filter((node) => node.type in schemas);

test("workflows that the page saved in earlier versions give every value to its name", () => {
  assert.ok(old.length >= 3);
  for (const { workflow, prompt } of old) {
    for (const node of ours(workflow)) {
      const found = namedValues(node, widgetsOf(node.type), ordersOf(node.type));
      assert.deepEqual(found, told(node, prompt), node.type);
    }
  }
});

test("so do nodes that tell nothing but positions", () => {
  const seen = new Set();
  for (const { workflow, prompt } of old) {
    for (const { inputs: _inputs, ...node } of ours(workflow)) {
      const found = namedValues(node, widgetsOf(node.type), ordersOf(node.type));
      assert.deepEqual(found, told(node, prompt), node.type);
      seen.add(`${node.type} ${node.widgets_values.length}`);
    }
  }
  const past = Object.entries(ORDERS).flatMap(([kind, orders]) =>
    orders.slice(1).map((order) => `${kind} ${order.split(",").length}`),
  );
  assert.ok(past.length >= 4);
  for (const order of past) assert.ok(seen.has(order), `no saved workflow has ${order}`);
});

test("graphs that earlier versions shipped keep their settings", () => {
  for (const { template } of old) {
    for (const node of ours(template)) {
      const widgets = widgetsOf(node.type);
      const found = namedValues(node, widgets, ordersOf(node.type));
      const shown = inOrder(found, widgets);
      assert.deepEqual(
        shown.map((value) => typeof value),
        widgets.map(({ value }) => typeof value),
        node.type,
      );
      for (const value of node.widgets_values) assert.ok(shown.includes(value), node.type);
    }
  }
});

test("saved dataset settings hold out what they said, nothing where they said nothing; new ones a few", () => {
  const kind = "WanDatasetSettings";
  const at = widgetsOf(kind).findIndex(({ name }) => name === "held_out_ratio");
  assert.equal(widgetsOf(kind)[at].value, -1);
  class Settings {
    widgets = widgetsOf(kind);
    configure(saved) {
      return [saved.widgets_values[at], saved.widgets_values_named.held_out_ratio];
    }
  }
  keepByName(Settings, kind);
  const seen = { said: 0, lacking: 0 };
  for (const { workflow, prompt } of old) {
    for (const node of ours(workflow).filter(({ type }) => type === kind)) {
      const said = told(node, prompt).held_out_ratio;
      seen[said === undefined ? "lacking" : "said"] += 1;
      assert.deepEqual(new Settings().configure(structuredClone(node)), [said ?? 0, said ?? 0]);
    }
  }
  assert.ok(seen.said && seen.lacking, JSON.stringify(seen));
  const own = { widgets_values: [], widgets_values_named: { held_out_ratio: 0.25 } };
  assert.deepEqual(new Settings().configure(own), [0.25, 0.25]);
});

const BEFORE = ["name", "steps"];
const NOW = ["name", "device", "steps", "note"];
const widgets = () => [
  { name: "name", value: "a" },
  { name: "device", value: "default" },
  { name: "steps", value: 10 },
  { name: "note", value: "say" },
  { name: "panel", value: "", serialize: false },
];
const restored = (saved) => inOrder(namedValues(saved, widgets(), [NOW, BEFORE]), widgets());

test("an input that was inserted or appended keeps its default", () => {
  assert.deepEqual(restored({ widgets_values: ["b", 20] }), ["b", "default", 20, "say"]);
  const named = { widgets_values: ["b", 20], widgets_values_named: { name: "b", steps: 20 } };
  assert.deepEqual(restored(named), ["b", "default", 20, "say"]);
});

test("the empty value of what only shows never lands in an input", () => {
  for (const empty of [[""], [null], ["", ""]]) {
    assert.deepEqual(restored({ widgets_values: ["b", 20, ...empty] }), [
      "b",
      "default",
      20,
      "say",
    ]);
  }
  const inputs = BEFORE.map((name) => ({ name, widget: { name } }));
  const appended = [...BEFORE, "note"];
  const shown = widgets().filter(({ name }) => name !== "device");
  const saved = { inputs, widgets_values: ["b", 20, ""] };
  assert.deepEqual(inOrder(namedValues(saved, shown, [appended]), shown), ["b", 20, "say"]);
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
  const orders = [["a", "b", "c"]];
  const numbers = ["a", "b", "c"].map((name, at) => ({ name, value: at }));
  const swapped = { widgets_values: [10, 20, 30], widgets_values_named: { a: 10, b: 30, c: 20 } };
  assert.deepEqual(inOrder(namedValues(swapped, numbers, orders), numbers), [10, 20, 30]);
  const size = ordersOf("WanVideoDataset")[0];
  const made = widgetsOf("WanVideoDataset");
  const values = made.map(({ name, value }) => ({ width: 832, height: 480 })[name] ?? value);
  const named = Object.fromEntries(size.map((name, at) => [name, values[at]]));
  const [wide, high] = [size.indexOf("width"), size.indexOf("height")];
  [values[wide], values[high]] = [values[high], values[wide]];
  const found = namedValues({ widgets_values: values, widgets_values_named: named }, made, [size]);
  assert.deepEqual([found.width, found.height], [480, 832]);
});

test("names of a moved order are believed, also when a program has sorted them", () => {
  const moved = [
    ["a", "b", "c"],
    ["c", "a", "b"],
  ];
  const numbers = ["a", "b", "c"].map((name, at) => ({ name, value: at }));
  const named = { a: 10, b: 20, c: 30 };
  const saved = { widgets_values: [30, 10, 20], widgets_values_named: named };
  assert.deepEqual(inOrder(namedValues(saved, numbers, moved), numbers), [10, 20, 30]);
});

test("names of a version with an input that is gone are believed, also when a program has sorted them", () => {
  const named = { device: "cpu", name: "b", scheduler: "old", steps: 20 };
  const saved = { widgets_values: ["b", "old", "cpu", 20], widgets_values_named: named };
  assert.deepEqual(restored(saved), ["b", "cpu", 20, "say"]);
});

test("values that have no name are those of their positions", () => {
  const values = ["b", "cpu", 30, "hm"];
  for (const named of [{}, { name: "b" }, { steps: 30, device: "cpu" }, { steps: 20 }]) {
    assert.deepEqual(
      restored({ widgets_values: values, widgets_values_named: named }),
      values,
      JSON.stringify(named),
    );
  }
  for (const named of [{}, { name: "b" }, { steps: 20 }]) {
    const before = { widgets_values: ["b", 20], widgets_values_named: named };
    assert.deepEqual(restored(before), ["b", "default", 20, "say"], JSON.stringify(named));
  }
  const unlike = { widgets_values: ["b", 20], widgets_values_named: { name: "c" } };
  assert.deepEqual(restored(unlike), ["c", "default", 20, "say"]);
  assert.equal(
    namedValues({ widgets_values: [1, "b"], widgets_values_named: {} }, widgets(), [NOW, BEFORE]),
    null,
  );
});

test("values that fit no known order are left to the page", () => {
  assert.equal(namedValues({ widgets_values: [1, 2, 3, 4, 5, 6] }, widgets(), [NOW, BEFORE]), null);
  assert.equal(namedValues({ widgets_values: [1, "b"] }, widgets(), [NOW, BEFORE]), null);
  assert.equal(namedValues({}, widgets(), [NOW, BEFORE]), null);
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
