// A browser refuses to start a worker from a file. On pages opened from disk the search therefore runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise((resolve, reject) => {
        document.addEventListener("DOMContentLoaded", () => this.load(url, resolve, reject))
        if (document.readyState !== "loading") this.load(url, resolve, reject)
      })
    }

    load(url, resolve, reject) {
      if (this.frame.isConnected) return
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = message => {
        const event = new MessageEvent("message", { data: structuredClone(message) })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      const script = inside.document.createElement("script")
      script.onload = resolve
      script.onerror = reject
      script.src = url
      inside.document.head.append(script)
    }

    // A worker gets a copy. The search changes the query that it is given, which is also the text of the search box.
    postMessage(message) {
      const data = structuredClone(message)
      this.ready.then(() => this.frame.contentWindow.onmessage(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
