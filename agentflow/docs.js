// The link that `agentflow api` prints brings the token behind #, which no server sees and no log keeps. This tab keeps it.
const kept = "agentflow-token", given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(kept, given);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem(kept);
if (!token) {
  const said = "To try these calls, open the link that `agentflow api` printed: it brings the token.";
  document.querySelector("#swagger-ui").before(Object.assign(document.createElement("p"), {textContent: said}));
}
const ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  validatorUrl: null,
  onComplete: () => token && ui.preauthorizeApiKey("token", token),
});
