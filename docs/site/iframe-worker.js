// Lets the search work when the site is opened as files: browsers start no Worker there, so a frame takes its place.
// Material would load such a script from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.answer = data => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.srcdoc =
        "<script>self.postMessage = data => frameElement.answer(data)</" + "script>" +
        `<script src="${url}"></` + "script>";
      this.loaded = new Promise(resolve => frame.addEventListener("load", () => resolve(frame.contentWindow)));
      document.body.append(frame);
    }

    postMessage(data) {
      this.loaded.then(worker => worker.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
