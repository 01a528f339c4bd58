import assert from "node:assert/strict";
import { test } from "node:test";

import { isMissing, Routes, samplePath } from "../../../web/js/lib/page/routes.mjs";

function server(status, body) {
  const asked = [];
  const fetchApi = async (path, options) => {
    asked.push([path, options]);
    return new Response(body, { status });
  };
  return { asked, routes: new Routes(fetchApi) };
}

test("ids are quoted, so that none of them is a path", async () => {
  const { asked, routes } = server(200, '{"next": 0, "records": []}');
  await routes.metrics("../a b?", 7);
  assert.equal(asked[0][0], "/wan_trainer/runs/..%2Fa%20b%3F/metrics?since=7&thin=1");
  assert.equal(samplePath("r", "javascript:x"), "/wan_trainer/runs/r/samples/javascript%3Ax");
});

test("what changes something is JSON and carries the header", async () => {
  const { asked, routes } = server(202, '{"sent": true}');
  await routes.act("my_lora", "stop");
  await routes.remove("my_lora");
  for (const [, { method, headers }] of asked) {
    assert.equal(method, "POST");
    assert.deepEqual(headers, { "Content-Type": "application/json", "X-Wan-Trainer": "1" });
  }
  assert.equal(asked[0][1].body, "{}");
  assert.equal(asked[1][1].body, '{"confirm":"my_lora"}');
});

test("a refusal is told in the server's words", async () => {
  const { routes } = server(409, '{"error": "This run is not being trained."}');
  await assert.rejects(routes.act("a", "stop"), /^Error: This run is not being trained\.$/);
});

test("what is not there is told from what went wrong", async () => {
  for (const [code, missing] of [
    [404, true],
    [500, false],
  ]) {
    const error = await server(code, "{}")
      .routes.detail("a")
      .catch((reason) => reason);
    assert.equal(isMissing(error), missing);
  }
  assert.equal(isMissing(new TypeError("Failed to fetch")), false);
});

test("an error page is told by its status", async () => {
  const { routes } = server(500, "<html><script>alert(1)</script>");
  await assert.rejects(routes.detail("a"), /^Error: The server answered 500\.$/);
});

test("an endless message is cut", async () => {
  const { routes } = server(400, JSON.stringify({ error: "x".repeat(9999) }));
  await assert.rejects(routes.detail("a"), (error) => error.message.length === 1500);
});
