// @ts-check
/**
 * Reasons why ComfyUI refused a queued graph. No node runs, so no message contains them, and the page only shows a toast.
 */

/** Length limit of details, because ComfyUI and other packs may list all files. */
const LONGEST = 300;

/**
 * @typedef {{ type?: string, message?: string, details?: string }} NodeError
 * @typedef {Record<string, string>} Reasons by the id of the node
 */

/**
 * @param {unknown} nodeErrors of the response to POST /prompt, also if the other nodes run
 * @returns {Reasons}
 */
export function reasonsIn(nodeErrors) {
  /** @type {Reasons} */
  const reasons = {};
  for (const [id, said] of Object.entries(nodeErrors ?? {})) {
    const errors = /** @type {NodeError[]} */ (Array.isArray(said?.errors) ? said.errors : []);
    const found = [...new Set(errors.map(reasonOf))].join(" ");
    if (found) reasons[id] = found;
  }
  return reasons;
}

/** The reason; details of our own refusals start with the input's name. @param {NodeError} error */
function reasonOf({ type, message, details }) {
  const said = String(details ?? "");
  const own = type === "custom_validation_failed" ? said.indexOf(" - ") : -1;
  if (own >= 0) return said.slice(own + 3).trim();
  return [message, said.slice(0, LONGEST)].filter(Boolean).join(": ");
}

/**
 * Wraps the queue function to read its response, for every caller.
 * @param {any} api ComfyUI's
 * @param {(reasons: Reasons) => void} tell called with no reasons before the request, because a graph may start before the
 *   response, and with the response's reasons
 */
export function watchQueue(api, tell) {
  const queue = api.queuePrompt;
  api.queuePrompt = async function (/** @type {unknown[]} */ ...given) {
    tell({});
    try {
      const answer = await queue.apply(this, given);
      tell(reasonsIn(answer?.node_errors));
      return answer;
    } catch (error) {
      tell(reasonsIn(/** @type {any} */ (error)?.response?.node_errors));
      throw error;
    }
  };
}
