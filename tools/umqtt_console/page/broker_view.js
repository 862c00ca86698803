// The console's view of one broker: the board that the broker's own page shows.
import { Board } from "./broker.js";
import { make, setText } from "./dom.js";

export async function brokerView(host, parameters, app) {
  const down = make("p", { class: "banner warn", hidden: true });
  host.append(make("div", { class: "top" }, make("h1", {}, "Broker"), make("p", { class: "quiet" }, app.me.brokers[0]?.where ?? "")), down);
  if (!app.me.parts.broker_api) {
    host.append(make("section", { class: "card" }, make("h2", {}, "The broker's figures are not known here"),
      make("p", { class: "quiet" }, "Switch on the HTTP listener of the paired broker (http_listener in its file), and start the console with its address and token:"),
      make("pre", {}, "umqtt console --broker-http http://127.0.0.1:8088 --broker-token broker.db.token …")));
    return {};
  }
  let busy = false;
  let timer = 0;
  let closed = false;
  const request = async (method, path) => (await app.ask(path.replace(/^\/api(\/broker$)?/, "broker"), method === "GET" ? null : {}, {}, method)).json();
  const board = new Board(host, request, { again: () => update(), mayAct: app.may("operate") });
  async function update() {
    if (busy) return;
    busy = true;
    clearTimeout(timer);
    try {
      await board.update();
      down.hidden = true;
    } catch (error) {
      setText(down, `${error.message}. The figures below are its last.`);
      down.hidden = false;
    } finally {
      busy = false;
    }
    if (!closed) timer = setTimeout(update, document.hidden ? 10000 : 1000);
  }
  await update();
  return { close: () => { closed = true; clearTimeout(timer); board.close(); } };
}
