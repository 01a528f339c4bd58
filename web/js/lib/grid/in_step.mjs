// @ts-check
/** Plays clips in sync: all start together, and again after the longest has ended. */

/** Milliseconds that the first round waits for clips to load; a slower clip joins the next round. */
const GATHER = 600;

export class InStep {
  /** @type {Set<HTMLVideoElement>} */
  clips = new Set();
  /** Clips that play in this round. @type {Set<HTMLVideoElement>} */
  #playing = new Set();
  #isGathering = false;

  /** @param {HTMLVideoElement} video that has a source */
  add(video) {
    if (!this.clips.size) {
      this.#isGathering = true;
      setTimeout(() => {
        this.#isGathering = false;
        this.#begin();
      }, GATHER);
    }
    this.clips.add(video);
    video.loop = false;
    video.onended = () => this.#ended(video);
    video.onloadeddata = () => this.#begin();
    video.onerror = () => this.remove(video);
  }

  /** @param {HTMLVideoElement} video */
  remove(video) {
    if (!this.clips.delete(video)) return;
    /** @type {any} */ for (const event of ["onended", "onloadeddata", "onerror"])
      video[event] = null;
    this.#ended(video);
  }

  /** @param {HTMLVideoElement} video */
  #ended(video) {
    this.#playing.delete(video);
    this.#begin();
  }

  #begin() {
    if (this.#isGathering || this.#playing.size) return;
    this.#playing = new Set([...this.clips].filter(({ readyState }) => readyState >= 2));
    for (const one of this.#playing) {
      one.currentTime = 0;
      play(one);
    }
  }
}

/** Starts a clip; browsers may refuse before the user has interacted with the page. @param {HTMLVideoElement} video */
export function play(video) {
  video.play()?.catch(() => {});
}
