"use strict";

// Once textual.js has its terminal measure the letters, they must be there; and a web socket wants a whole address.
const start = window.onload;
window.onload = async (event) => {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const terminal = document.querySelector("#terminal");
  terminal.dataset.sessionWebsocketUrl = `${scheme}//${location.host}${location.pathname}ws`;
  document.querySelector("#again").onclick = () => location.reload();
  await document.fonts.load('15px "Roboto Mono"').catch(() => null);
  start(event);
  const focus = () => document.querySelector("#terminal textarea")?.focus();
  focus();
  window.addEventListener("focus", focus);
};
