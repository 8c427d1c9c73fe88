/* The search runs in a worker. A browser starts none from a file, so there the worker's script runs in a hidden frame of the page. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inside = frame.contentWindow, answer = data => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.postMessage = data => answer(data);
      this.frame = frame;
      this.ready = new Promise((resolve, reject) => {
        const script = frame.contentDocument.createElement("script");
        script.src = address;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${address} cannot be loaded`));
        frame.contentDocument.head.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => {
        const event = new MessageEvent("message", { data });
        this.frame.contentWindow.dispatchEvent(event);
      });
    }
    terminate() { this.frame.remove(); }
  };
}
