// A client that knows nothing of the proxy: connections by one selector (epoll), each sends random bytes and checks what comes back.
// usage: java Echo.java HOST PORT CONNECTIONS BYTES
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.Random;

public class Echo {
    static final class Flow {
        final ByteBuffer out, in;
        final byte[] sent;

        Flow(int bytes, long seed) {
            sent = new byte[bytes];
            new Random(seed).nextBytes(sent);
            out = ByteBuffer.wrap(sent);
            in = ByteBuffer.allocate(bytes);
        }
    }

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[2]), whole = 0, bytes = Integer.parseInt(words[3]);
        Selector selector = Selector.open();
        for (int i = 0; i < count; i++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(new InetSocketAddress(words[0], Integer.parseInt(words[1])));
            channel.register(selector, SelectionKey.OP_CONNECT, new Flow(bytes, i));
        }
        for (int open = count; open > 0; ) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                SocketChannel channel = (SocketChannel) key.channel();
                Flow flow = (Flow) key.attachment();
                if (key.isConnectable() && channel.finishConnect()) {
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) {
                    channel.write(flow.out);
                    if (!flow.out.hasRemaining()) {
                        channel.shutdownOutput();
                        key.interestOps(SelectionKey.OP_READ);
                    }
                }
                if (key.isReadable() && (channel.read(flow.in) < 0 || !flow.in.hasRemaining())) {
                    whole += java.util.Arrays.equals(flow.in.array(), flow.sent) ? 1 : 0;
                    channel.close();
                    open--;
                }
            }
            selector.selectedKeys().clear();
        }
        System.out.println(whole + " connections are whole");
    }
}
