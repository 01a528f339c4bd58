import assert from "node:assert/strict";
import { test } from "node:test";

import { Panel } from "../../../web/js/lib/panel/panel.mjs";
import { StatusLine } from "../../../web/js/lib/panel/status_line.mjs";
import { TrainerNodes } from "../../../web/js/lib/panel/trainer_nodes.mjs";
import { RunHistory } from "../../../web/js/lib/run/history.mjs";

const ignore = () => {};
const step = (number) => ({ event: "step", step: number, steps: 150, loss: 0.5 });
const detail = (number, facts = {}) => ({
  id: "cat",
  state: "running",
  step: number,
  steps: 150,
  live: false,
  ...facts,
});
const status = (text, state = "running") => ({
  node: "7",
  run: "cat",
  text,
  state,
  stage: "train",
});

/** A panel of which only what it shows is missing. */
function panelOf(run, routes = {}) {
  const panel = Object.create(Panel.prototype);
  return Object.assign(panel, {
    run,
    routes,
    live: false,
    detail: null,
    detailDue: 0,
    line: Object.assign(Object.create(StatusLine.prototype), {
      text: "",
      origin: "",
      report: "",
      summary: "",
    }),
    history: new RunHistory(),
    queued: new Set(),
    now: () => 1e6,
    lost: ignore,
    enter: ignore,
    frames: { ask: ignore },
    follower: { ask: ignore },
    player: { take: ignore, update: ignore },
    face: { speak: ignore },
    clock: { read: ignore },
    endedAt: Number.NEGATIVE_INFINITY,
    notifier: { say: (run, how) => panel.notified.push(`${run}: ${how}`) },
    notified: [],
    trouble: { broke: "", forget: ignore },
  });
}

/** One round of the panel's follower. */
async function look(panel) {
  try {
    while (await panel.fetch());
  } catch (error) {
    panel.onFailure(error);
  }
}

/** Routes of a run whose facts a test changes. */
function server(runs) {
  const found = async (run) => {
    if (runs[run] instanceof Error) throw runs[run];
    if (!runs[run]) throw Object.assign(new Error("There is no such run."), { status: 404 });
    return runs[run];
  };
  return {
    list: async () => Object.keys(runs).map((id) => ({ ...runs[id], id })),
    detail: found,
    metrics: async (run, since) => {
      const { step: last } = await found(run);
      const records = Array.from({ length: last }, (_, i) => step(i + 1)).slice(since);
      return { next: since + records.length, records };
    },
  };
}

test("a run that goes on elsewhere says its newest step, and that it is done", async () => {
  const runs = { cat: detail(64) };
  const panel = panelOf("cat", server(runs));
  const said = [];
  for (const newest of [detail(64), detail(120), detail(150, { state: "done" })]) {
    runs.cat = newest;
    panel.detailDue = 0;
    await look(panel);
    said.push(panel.line.text);
  }
  const [first, second, last] = ["running: step 64", "running: step 120", "done: step 150"];
  assert.deepEqual(
    said,
    [first, second, last].map((text) => `${text} of 150`),
  );
});

test("a message stays until the run has stopped without a word", () => {
  const panel = panelOf("cat");
  panel.onStatus(status("step 7/150 loss 0.5"));
  panel.show(detail(7, { live: true }));
  assert.equal(panel.line.text, "step 7/150 loss 0.5");
  panel.show(detail(7, { state: "stopped" }));
  assert.equal(panel.line.text, "stopped: step 7 of 150");
});

test("the last message of a run says more than its summary, and stays", () => {
  const panel = panelOf("cat");
  panel.onStatus(status("done: eval 0.2 → 0.1", "done"));
  panel.show(detail(150, { state: "done" }));
  assert.equal(panel.line.text, "done: eval 0.2 → 0.1");
  panel.write("failed: out of memory");
  panel.show(detail(7, { state: "failed" }));
  assert.equal(panel.line.text, "failed: out of memory");
});

test("a run that said its end has ended, also while the server still holds it for live", () => {
  const panel = panelOf("cat");
  panel.show(detail(100, { live: true }));
  const about = { kind: "ended", state: "done", step: 150, steps: 150 };
  panel.onStatus({ ...status("done: step 150 of 150", "done"), about });
  panel.show(detail(100, { live: true }));
  assert.deepEqual([panel.live, panel.detail.state, panel.detail.step], [false, "done", 150]);
  panel.show(detail(150, { state: "done" }));
  assert.equal(panel.line.text, "done: step 150 of 150");
  panel.onStatus(status("loading weights"));
  panel.show(detail(150, { live: true }));
  assert.equal(panel.live, true, "it goes on");
});

test("the end of a run is told once, whoever says it first; of a run that was over, nothing", () => {
  const told = (...news) => {
    const panel = panelOf("cat");
    panel.frames = { ask: ignore };
    for (const one of news) one(panel);
    return panel.notified;
  };
  const going = (panel) => panel.onStatus(status("step 7"));
  const message = (panel) => panel.onStatus(status("done: step 150 of 150", "done"));
  const files = (panel) => panel.show(detail(150, { state: "done" }));
  assert.deepEqual(told(files, message), []);
  assert.deepEqual(told(going, message, files), ["cat: done: step 150 of 150"]);
  const elsewhere = (panel) => panel.show(detail(64));
  assert.deepEqual(told(elsewhere, files, files), ["cat: done: step 150 of 150"]);
  assert.deepEqual(
    told(going, (panel) => panel.onBroken("no memory")),
    ["cat: failed: no memory"],
  );
});

test("the answer to a button can be read until there is news", () => {
  const panel = panelOf("cat");
  panel.show(detail(64));
  panel.say("Opened the folder.");
  panel.show(detail(64));
  assert.equal(panel.line.text, "Opened the folder.");
  panel.show(detail(65));
  assert.equal(panel.line.text, "running: step 65 of 150");
});

test("an error is forgotten at once when the run can be read again", async () => {
  const runs = { cat: new Error("The server answered 500.") };
  const panel = panelOf("cat", server(runs));
  panel.detailDue = panel.now() + 1;
  await look(panel);
  assert.match(panel.line.text, /cannot be read: The server answered 500/);
  runs.cat = detail(20, { state: "stopped" });
  await look(panel);
  assert.equal(panel.line.text, "stopped: step 20 of 150");
});

test("a server that does not answer is forgotten with the run it was asked about", async () => {
  const runs = { cat: new TypeError("Failed to fetch") };
  const panel = panelOf("cat", server(runs));
  await look(panel);
  assert.ok(panel.gone);
  panel.bind(null);
  assert.ok(!panel.gone);
});

test("a run that was deleted leaves nothing behind, and its node looks for another", async () => {
  const runs = { cat: detail(64) };
  const panel = panelOf("cat", server(runs));
  const lost = [];
  panel.lost = (run) => lost.push(run);
  await look(panel);
  assert.equal(panel.history.points, 64);
  delete runs.cat;
  await look(panel);
  assert.deepEqual(
    [panel.run, panel.line.text, panel.history.points, lost],
    [null, "", 0, ["cat"]],
  );
});

test("a run that begins is not lost because its folder is not there yet", async () => {
  const panel = panelOf("cat", server({}));
  panel.live = true;
  await look(panel);
  assert.equal(panel.run, "cat");
});

test("an answer about the run that was shown before says nothing of the one that is", async () => {
  const runs = { dog: detail(3) };
  const panel = panelOf("cat", server(runs));
  const round = look(panel);
  panel.bind("dog");
  await round;
  assert.deepEqual([panel.run, panel.line.text], ["dog", ""]);
});

/** The trainers of a graph with one node named cat. */
function trainersOf(runs, panel) {
  const node = { id: 7, widgets: [{ name: "run_name", value: "cat" }], wanTrainerPanel: panel };
  const root = () => ({ _nodes: [node], getNodeById: () => node });
  return {
    node,
    trainers: new TrainerNodes({ app: {}, api: {}, routes: server(runs), frames: {}, root }),
  };
}

test("a node whose run was deleted shows the one its name leads to now, or as soon as there is one", async () => {
  const runs = { cat: detail(9), cat_002: detail(5) };
  const panel = panelOf(null);
  const { node, trainers } = trainersOf(runs, panel);
  await trainers.onLost(node, "cat");
  assert.equal(panel.run, "cat_002", "not the one that is gone, though the list still has it");

  panel.bind(null);
  await trainers.onLost(node, "cat_002");
  delete runs.cat;
  panel.bind(null);
  trainers.onRuns([]);
  assert.equal(panel.run, null);
  trainers.onRuns([{ id: "cat", updated: 1 }]);
  assert.equal(panel.run, "cat");
});

test("a new node shows no run because a list was read", () => {
  const panel = panelOf(null);
  trainersOf({}, panel).trainers.onRuns([{ id: "cat", updated: 1 }]);
  assert.equal(panel.run, null);
});

test("a run that is in no list any more is looked at, one that is live or listed is not", () => {
  const looked = [];
  const tried = [
    ["gone", {}],
    ["listed", {}],
    ["trains", { live: true }],
    ["begins", { detail: null }],
  ];
  for (const [run, facts] of tried) {
    const panel = Object.assign(panelOf(run), { detail: {}, ...facts });
    panel.refresh = () => looked.push(run);
    trainersOf({}, panel).trainers.onRuns([{ id: "listed" }]);
  }
  assert.deepEqual(looked, ["gone"]);
});

test("what a node was told while the list of runs was on its way stays when the list comes", () => {
  const panel = panelOf(null);
  const { node, trainers } = trainersOf({}, panel);
  trainers.loaded(node);
  panel.write("failed: peft is missing");
  trainers.onRuns([{ id: "cat", updated: 1 }]);
  panel.show(detail(150, { state: "done" }));
  assert.deepEqual([panel.run, panel.line.text], ["cat", "failed: peft is missing"]);
  node.widgets[0].value = "dog";
  trainers.runs = [{ id: "dog", updated: 1 }];
  trainers.bind(node);
  assert.deepEqual(
    [panel.run, panel.line.text],
    ["dog", ""],
    "another run, of which nothing was said",
  );
});

test("a run that a node was told of is newer than the list", () => {
  const panel = panelOf(null);
  const { node, trainers } = trainersOf({}, panel);
  trainers.loaded(node);
  panel.onStatus({ ...status("done", "done"), run: "cat_002" });
  trainers.onRuns([{ id: "cat", updated: 1 }]);
  assert.deepEqual([panel.run, panel.line.text], ["cat_002", "done"]);
});
