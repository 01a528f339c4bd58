// @ts-check
/** Loads first frames of clips, a few at a time, because a page may have hundreds of clips. */

/** Maximum number of clips that load at once. */
export const AT_ONCE = 4;
/** Milliseconds after which loading a clip is given up. */
const PATIENCE = 20_000;
/** Fragment of an address: 0.1 s into the clip, because the first frame of a fade-in is black. */
const STILL = "#t=0.1";

/** @typedef {{ taken: (video: HTMLVideoElement) => void, failed: () => void }} Wanted */

export class Posters {
  /** Addresses in the queue, oldest first. @type {Map<string, Wanted>} */
  #waiting = new Map();
  #reading = 0;

  /** @param {() => HTMLVideoElement} make creates an element outside the page */
  constructor(make) {
    this.make = make;
  }

  /** @param {string} source address of a clip @param {Wanted} wanted called once, with the element while it has the frame */
  want(source, wanted) {
    this.#waiting.set(source, wanted);
    this.#next();
  }

  /** Called when a clip leaves the view: cancels its load. @param {string} source */
  forget(source) {
    this.#waiting.delete(source);
  }

  clear() {
    this.#waiting.clear();
  }

  #next() {
    for (const [source, wanted] of this.#waiting) {
      if (this.#reading >= AT_ONCE) return;
      this.#waiting.delete(source);
      this.#read(source, wanted);
    }
  }

  /** @param {string} source @param {Wanted} wanted */
  #read(source, { taken, failed }) {
    this.#reading += 1;
    const video = this.make();
    const end = (/** @type {() => void} */ then) => () => {
      clearTimeout(timer);
      video.onloadeddata = null;
      video.onerror = null;
      then();
      release(video);
      this.#reading -= 1;
      this.#next();
    };
    const timer = setTimeout(end(failed), PATIENCE);
    video.onloadeddata = end(() => taken(video));
    video.onerror = end(failed);
    video.src = source + STILL;
  }
}

/** Removes a clip's source, which cancels its download: browsers limit the number of open clips. @param {HTMLVideoElement} video */
export function release(video) {
  video.pause();
  video.removeAttribute("src");
  video.load();
}
