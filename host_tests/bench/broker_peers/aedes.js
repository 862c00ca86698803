// The broker aedes for the bench: node aedes.js PORT, with NODE_PATH naming the folder of its package.
const net = require('node:net')
const { pathToFileURL } = require('node:url')

async function main (port) {
  // NODE_PATH is for require alone, and the package is a module.
  const { Aedes } = await import(pathToFileURL(require.resolve('aedes')))
  // As many messages at once as come; the default of 100 would hold back the cases with 100 subscribers.
  const broker = await Aedes.createBroker({ concurrency: 10000 })
  net.createServer({ noDelay: true }, broker.handle).listen({ port, host: '127.0.0.1', backlog: 1024 })
}

main(Number(process.argv[2]))
