import assert from "node:assert/strict";
import { test } from "node:test";
import { reasonsIn, watchQueue } from "../../../web/js/lib/run/queue_refusals.mjs";

const own = (name, sentence) => ({
  type: "custom_validation_failed",
  message: "Custom validation failed for node",
  details: `${name} - ${sentence}`,
});

test("a node's own sentence is said once, without the name of the input and what ComfyUI puts before it", () => {
  const sentence = "Folder 'cats - dogs' is not in input. Did you mean \"cats\"?";
  const errors = [own("folder", sentence), own("settings", sentence)];
  assert.deepEqual(reasonsIn({ 5: { errors, class_type: "WanVideoDataset" } }), { 5: sentence });
});

test("what ComfyUI refuses is said in its words, and not at any length", () => {
  const error = {
    type: "required_input_missing",
    message: "Required input is missing",
    details: "cache",
  };
  const long = {
    type: "value_not_in_list",
    message: "Value not in list",
    details: "x".repeat(9000),
  };
  const said = reasonsIn({ 7: { errors: [error] }, "2:3": { errors: [long] } });
  assert.equal(said[7], "Required input is missing: cache");
  assert.equal(said["2:3"].length, "Value not in list: ".length + 300);
});

test("answers without reasons say nothing", () => {
  for (const none of [
    undefined,
    null,
    {},
    [],
    { 1: null },
    { 1: { errors: [] } },
    { 1: { errors: "no" } },
  ]) {
    assert.deepEqual(reasonsIn(none), {});
  }
});

test("every answer of the queue is heard, and whoever queued gets it as it was", async () => {
  const refused = Object.assign(new Error("no"), {
    response: { node_errors: { 4: { errors: [own("folder", "It is gone.")] } } },
  });
  const answers = [{ prompt_id: "a", node_errors: {} }, refused, new TypeError("offline")];
  const api = {
    name: "api",
    async queuePrompt(number, prompt) {
      assert.deepEqual([this.name, number, prompt], ["api", 0, "graph"]);
      const answer = answers.shift();
      if (answer instanceof Error) throw answer;
      return answer;
    },
  };
  const heard = [];
  watchQueue(api, (reasons) => heard.push(reasons));
  assert.equal((await api.queuePrompt(0, "graph")).prompt_id, "a");
  await assert.rejects(api.queuePrompt(0, "graph"), refused);
  await assert.rejects(api.queuePrompt(0, "graph"), TypeError);
  assert.deepEqual(heard, [{}, {}, {}, { 4: "It is gone." }, {}, {}]);
});
